"""Web servers in processes of their own, and the load on them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.shared.processes import ROOT, running, wait_until

LOAD_SECONDS: Final = 120
_URL: Final = re.compile(r"http://127\.0\.0\.1:\d+")
UVICORN: Final = ("-m", "uvicorn", "--port", "0", "--no-access-log")
GUNICORN: Final = (
    "-m", "gunicorn", "--bind", "127.0.0.1:0", "--threads", "8", "--worker-class", "gthread",
    "--keep-alive", "30",
)  # fmt: skip


@contextmanager
def serving(*command: str, environment: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Run a server on a free port; yield its process id and its URL."""
    with tempfile.NamedTemporaryFile() as file:
        log = Path(file.name)
        with running(*command, environment=environment, log=log) as process:
            wait_until(lambda: _URL.search(log.read_text()), process, log, seconds=30, pause=0.1)
            yield process.pid, _URL.findall(log.read_text())[0]


def load(url: str, token: str, connections: int, seconds: float) -> list[float]:
    """POST from another process; return the milliseconds of each request."""
    command = ["-m", "benchmarks.webapp.load", url, token, str(connections), str(seconds)]
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        timeout=LOAD_SECONDS,
    )  # fmt: skip
    found: list[float] = json.loads(done.stdout)
    return found
