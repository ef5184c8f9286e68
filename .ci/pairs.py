"""Run short tests on other versions of Python, Django and psycopg, and the admin on each Django.

`make test` runs everything on one combination. This script runs words, contracts, sessions and
schedules on each further Python, Django and psycopg, with few made-up histories and without Spark.
Then it opens the main pages of the admin in Chromium on each Django. `tox run` runs all tests on
all pairs of Python and Django.
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
import psycopg

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from tests.support.browser import BrowserError, find_chromium  # noqa: E402

# Python, Django and psycopg: first the newest of each, then the versions that are left.
PAIRS = (
    ("3.13", "6.1", "3.3"), ("3.12", "6.0", "3.2"), ("3.12", "5.2", "3.3"), ("3.11", "5.2", "3.2"),
)  # fmt: skip
# No pair begins after so many seconds: this is to add three minutes, not ten.
BEGIN_WITHIN = 90
KEPT = ROOT / ".tox" / "pairs"
# As of `make test`.
WITHIN = ("--timeout=300", "--timeout-method=thread")
TESTS = (
    "tests/words", "tests/queue/contract", "tests/db/test_paths.py", "tests/cron", "tests/testing",
    "--ignore-glob=*/races/*", "--ignore-glob=*/faults/*",
    "-m", "not slow and not spark and not long",
)  # fmt: skip
# The browser tests of the admin: each Django has other markup and styles.
DJANGOS = ("6.1", "6.0", "5.2")
PAGES = ("tests/admin/test_browser.py::test_lists_and_main_pages_fit_in_short", "-m", "")
# An interpreter that cannot make an environment is none: Debian's has no ensurepip.
QUESTION = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"


class Pair(NamedTuple):
    python: str
    django: str
    psycopg: str = "3.3"

    def __str__(self) -> str:
        return f"Python {self.python} with Django {self.django} and psycopg {self.psycopg}"


def here() -> Pair:
    """Return the pair that `make test` ran on: that of this interpreter."""
    libpq = ".".join(psycopg.__version__.split(".")[:2])
    return Pair("{}.{}".format(*sys.version_info), "{}.{}".format(*django.VERSION), libpq)


def chosen(known: set[str], done: Pair) -> list[Pair]:
    """Return the pairs that have a version of something that none before them had."""
    seen, found = set(enumerate(done)), []
    for pair in (Pair(*each) for each in PAIRS):
        versions = set(enumerate(pair))
        if pair.python in known and not versions <= seen:
            found.append(pair)
            seen |= versions
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
    versions = {version for version, *_ in PAIRS}
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
        extras = ".[metrics,notifications,tasks]"
        run(*install, "--editable", extras, "--group", "pairs")
        stamp.touch()
    return str(made)


def directory_of(python: str, version: str, *packages: str) -> str:
    """Return a directory with that version of packages, to precede those of an environment."""
    made = KEPT / f"{Path(python).parent.parent.name}-{packages[0]}-{version}"
    if not made.exists():
        part = made.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        wanted = [f"{each}=={version}.*" for each in packages]
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(part), *wanted)
        part.rename(made)
    return str(made)


def test(pair: Pair, interpreter: str, *tests: str) -> None:
    python = environment_of(pair.python, interpreter)
    before = os.pathsep.join([
        directory_of(python, pair.django, "django"),
        directory_of(python, pair.psycopg, "psycopg", "psycopg-binary"),
    ])  # fmt: skip
    proof = (
        f"import django as d, psycopg, sys; sys.exit('%d.%d' % d.VERSION[:2] != {pair.django!r}"
        f" or not psycopg.__version__.startswith('{pair.psycopg}.'))"
    )
    run(python, "-c", proof, PYTHONPATH=before)
    run(
        python, "-m", "pytest", "-q", *WITHIN, *tests,
        PYTHONPATH=before, HYPOTHESIS_PROFILE="brief",
    )  # fmt: skip


def install_chromium() -> str:
    """Install Chromium if it is missing and this may be done; return why there is none."""
    apt = shutil.which("apt-get") if os.getuid() == 0 else None
    try:
        find_chromium()
    except BrowserError as error:
        if apt is None:
            return str(error)
        print("Installing Chromium", flush=True)  # noqa: T201
        quiet = (apt, "-qq", "-o=Dpkg::Use-Pty=0")
        subprocess.run((*quiet, "update"), check=False)  # noqa: S603
        run(*quiet, "install", "-y", "--no-install-recommends", "chromium",
            DEBIAN_FRONTEND="noninteractive")  # fmt: skip
    return ""


def browse(known: dict[str, str]) -> None:
    """Check the layout of the admin on each Django, on the newest Python that runs them all."""
    python = next((pair[0] for pair in PAIRS if pair[0] in known), None)
    if missing := install_chromium() or (python is None and "No Python to test with here."):
        print(f"The admin's layout is not tested: {missing}")  # noqa: T201
        return
    for version in DJANGOS if python != "3.11" else DJANGOS[-1:]:
        pair = Pair(str(python), version)
        print(f"The admin's layout in Chromium on {pair}", flush=True)  # noqa: T201
        test(pair, known[pair.python], *PAGES)


def main() -> None:
    known = interpreters()
    pairs = chosen(set(known), here())
    if not pairs:
        print(f"No further version to test here: all was run on {here()}")  # noqa: T201
    begun = time.monotonic()
    for pair in pairs:
        if time.monotonic() - begun > BEGIN_WITHIN:
            print(f"For want of time left to tox: {pair}")  # noqa: T201
            continue
        print(f"Words, contracts, sessions, schedules again on {pair}", flush=True)  # noqa: T201
        test(pair, known[pair.python], "-n", os.environ.get("JOBS", "auto"), *TESTS)
    browse(known)


if __name__ == "__main__":
    main()
