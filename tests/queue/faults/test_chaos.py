"""The short form of the soak: every promise of the queue under random faults (W4, W5, W7)."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tests.chaos.schedule import FAULTS, drawn
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


def test_a_seed_gives_the_same_faults_again_and_a_longer_run_begins_with_them() -> None:
    assert drawn(1, 600) == drawn(1, 600)
    assert drawn(1, 600)[: len(drawn(1, 60))] == drawn(1, 60)
    assert drawn(1, 600) != drawn(2, 600)


def test_every_fault_comes_in_a_long_run() -> None:
    assert {fault.name for fault in drawn(1, 600)} == set(FAULTS)
