"""The short form of the soak: every promise of the queue under random faults (W4, W5, W7)."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tests.support.processes import ROOT
from tests.support.programs import ROUNDS

pytestmark = pytest.mark.slow

SECONDS: Final = 6.0


@pytest.mark.parametrize("seed", [number + 1 for number in ROUNDS])
def test_a_soak_keeps_every_promise(seed: int) -> None:
    command = ("-m", "tests.chaos", "--seconds", str(SECONDS), "--seed", str(seed))
    soak = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=180
    )
    assert soak.returncode == 0, soak.stdout + soak.stderr
    assert "broken promises: none" in soak.stdout
