"""Schemathesis against the description that a real server serves (J14)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

from delayed_queue.http.tokens import VERBS, create_token
from tests.http.api.servers import uvicorn

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = "4" if hypothesis.settings.get_current_profile_name() == "everyday" else "15"
OPTIONS = (
    "--generation-deterministic", "--max-examples", EXAMPLES, "--no-shrink", "--no-color",
    "--suppress-health-check", "all", "--request-timeout", "20", "--continue-on-failure",
    "--warnings", "off",
)  # fmt: skip


def test_no_server_error_and_no_undocumented_answer(tmp_path: Path):
    token = create_token("schemathesis", verbs=VERBS, topics=["*"])
    with uvicorn(POP_TIMEOUT=0.2) as server:
        url = f"{server.url}/queue/v1/openapi.json"
        command = [
            sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION), "run",
            url, "--header", f"Authorization: Bearer {token}", *OPTIONS,
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"Selected: (\d+)/\1\n +Tested: \1\n", done.stdout), done.stdout
        assert "event=api_request_failed" not in server.log()
