"""Schemathesis against the description that a real server serves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import hypothesis

from delayed_queue.http.tokens import VERBS, create_token
from tests.http.api.servers import Server

CONFIGURATION: Final = Path(__file__).with_name("schemathesis.toml")
EXAMPLES: Final = "4" if hypothesis.settings.get_current_profile_name() == "everyday" else "15"
# Without sequences of calls: tests/http/jobs/test_state_machine.py makes them up.
OPTIONS: Final = (
    "--phases", "examples,coverage,fuzzing", "--generation-deterministic",
    "--max-examples", EXAMPLES, "--no-shrink", "--no-color", "--suppress-health-check", "all",
    "--request-timeout", "20", "--continue-on-failure", "--warnings", "off",
)  # fmt: skip


def check_described(server: Server, path: str, folder: Path, *options: str) -> None:
    """Call each operation of the description with made-up requests; fail for a wrong answer."""
    token = create_token("schemathesis", verbs=VERBS, topics=["*"])
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION), "run",
        f"{server.url}{path}", "--header", f"Authorization: Bearer {token}", *OPTIONS, *options,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Selected: (\d+)/\1\n +Tested: \1\n", done.stdout), done.stdout
    assert "event=api_request_failed" not in server.log()
