"""Run words, contracts and schedules on other pairs of Python and Django that this machine has.

`make test` has run everything on one pair. Here each further Python and each further Django has its
turn, with few made-up histories and without Spark; all pairs in full are tox's: `tox run`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import django

ROOT = Path(__file__).resolve().parent.parent
# Pairs in the order in which they are worth it: the newest of both, then what that leaves.
PAIRS = (("3.13", "6.1"), ("3.12", "6.0"), ("3.12", "5.2"), ("3.11", "5.2"))
# No pair begins after so many seconds: this is to add three minutes, not ten.
BEGIN_WITHIN = 90
KEPT = ROOT / ".tox" / "pairs"
# As of `make test`.
WITHIN = ("--timeout=300", "--timeout-method=thread")
TESTS = (
    "tests/words", "tests/queue/contract", "tests/cron", "tests/testing",
    "--ignore-glob=*/races/*", "--ignore-glob=*/faults/*",
    "-m", "not slow and not spark and not long",
)  # fmt: skip
# An interpreter that cannot make an environment is none: Debian's has no ensurepip.
QUESTION = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"


class Pair(NamedTuple):
    python: str
    django: str

    def __str__(self) -> str:
        return f"Python {self.python} with Django {self.django}"


def here() -> Pair:
    """Return the pair that `make test` ran on: that of this interpreter."""
    return Pair("{}.{}".format(*sys.version_info), "{}.{}".format(*django.VERSION))


def chosen(known: set[str], done: Pair) -> list[Pair]:
    """Return the pairs that bring a Python or a Django that none before them had."""
    pythons, djangos, found = {done.python}, {done.django}, []
    for pair in (Pair(*each) for each in PAIRS):
        if pair.python in known and not (pair.python in pythons and pair.django in djangos):
            found.append(pair)
            pythons.add(pair.python)
            djangos.add(pair.django)
    return found


def candidates(version: str) -> list[str]:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    beside = sorted(str(each) for each in pyenv.glob(f"{version}.*/bin/python"))
    return [*filter(None, [shutil.which(f"python{version}")]), *beside]


def says(interpreter: str) -> str:
    done = subprocess.run([interpreter, "-c", QUESTION], capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip()


def interpreters() -> dict[str, str]:
    """Return a working interpreter for each version of the pairs; shims of pyenv may be dead."""
    versions = {version for version, _ in PAIRS}
    found = {v: next((c for c in candidates(v) if says(c) == v), "") for v in versions}
    return {version: path for version, path in found.items() if path}


def run(*command: str, **environment: str) -> None:
    """Run it in the root of the repository; end this process if it fails."""
    code = subprocess.run(command, cwd=ROOT, env=os.environ | environment).returncode  # noqa: S603
    if code:
        sys.exit(code)


def environment_of(version: str, interpreter: str) -> str:
    """Return the Python of an environment with all the tests need; made where it is older."""
    made, stamp = KEPT / version / "bin" / "python", KEPT / version / "installed"
    sources = (ROOT / "setup.py", ROOT / "pyproject.toml")
    if not stamp.exists() or stamp.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        run(interpreter, "-m", "venv", "--clear", str(KEPT / version))
        install = (str(made), "-m", "pip", "install", "--quiet", "--no-compile")
        run(*install, "--upgrade", "pip>=25.1")
        # Spark's side knows no Django, and is most of what there is to install.
        extras = ".[metrics,notifications]"
        run(*install, "--editable", extras, "--group", "pairs")
        stamp.touch()
    return str(made)


def directory_of(version: str, python: str) -> str:
    """Return a directory with that Django, to be put before the one of an environment."""
    made = KEPT / f"django-{version}"
    if not made.exists():
        part = made.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        wanted = f"django=={version}.*"
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(part), wanted)
        part.rename(made)
    return str(made)


def test(pair: Pair, interpreter: str) -> None:
    python = environment_of(pair.python, interpreter)
    before = directory_of(pair.django, python)
    proof = f"import django as d, sys; sys.exit('%d.%d' % d.VERSION[:2] != {pair.django!r})"
    run(python, "-c", proof, PYTHONPATH=before)
    run(
        python, "-m", "pytest", "-q", "-n", os.environ.get("JOBS", "auto"), *WITHIN, *TESTS,
        PYTHONPATH=before, HYPOTHESIS_PROFILE="brief",
    )  # fmt: skip


def main() -> None:
    known = interpreters()
    pairs = chosen(set(known), here())
    if not pairs:
        print(f"No further Python or Django to test here: all was run on {here()}")  # noqa: T201
    begun = time.monotonic()
    for pair in pairs:
        if time.monotonic() - begun > BEGIN_WITHIN:
            print(f"For want of time left to tox: {pair}")  # noqa: T201
            continue
        print(f"Words, contracts and schedules again on {pair}", flush=True)  # noqa: T201
        test(pair, known[pair.python])


if __name__ == "__main__":
    main()
