"""Errors of a psycopg without libpq, in processes that really lack it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

ADVICE = "pip install 'psycopg[binary]'"
# Python runs it before all other code of the process.
HIDING = """
import ctypes.util, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"psycopg_binary", "psycopg_c"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
found = ctypes.util.find_library
ctypes.util.find_library = lambda name: LIBPQ if name in {"pq", "libpq"} else found(name)
"""


def run(directory: Path, *command: str, libpq: str | None = None) -> tuple[int, str, str]:
    """Run Python with only the pure psycopg, with that libpq or none."""
    text = HIDING.replace("LIBPQ", repr(libpq))
    (directory / "sitecustomize.py").write_text(text, encoding="utf-8")
    path = f"{directory}{os.pathsep}{ROOT}"
    nowhere = "host=127.0.0.1 port=1 dbname=x"
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path, "DELAYED_QUEUE_DSN": nowhere},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "command", [["-m", "delayed_queue.spark", "doctor"], ["manage.py", "queuepipeline", "doctor"]]
)
def test_the_doctor_says_what_to_install(tmp_path: Path, command: list[str]):
    code, out, err = run(tmp_path, *command)
    assert code == 1
    assert ADVICE in out + err
    assert "libpq" in out + err
    assert "Traceback" not in out + err
    assert len(err.splitlines()) <= 1


def test_any_other_command_says_it_too(tmp_path: Path):
    code, out, err = run(
        tmp_path, "-m", "delayed_queue.spark", "drain", "--queue", "a", "--to", "b"
    )
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert ADVICE in err


def test_the_source_says_why_spark_does_not_find_it(tmp_path: Path):
    code, out, err = run(tmp_path, "-c", "import pyspark_delayed_queue as m; print(dir(m))")
    assert (code, "DefaultSource" in out) == (0, False)
    assert "source=delayed_queue" in err
    assert "pip install 'django-delayed-queue[spark]'" in err
    assert "Traceback" not in err
