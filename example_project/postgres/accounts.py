"""The account a server runs under: PostgreSQL refuses to run as root."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from example_project.postgres.exceptions import LauncherError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path


class Account(NamedTuple):
    """An existing account that root hands the server to."""

    name: str
    uid: int
    gid: int


def is_root() -> bool:
    """Return True if this process runs as root; never on Windows."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def server_account(data_directory: Path) -> Account | None:
    """Return the account to run the server of the directory under; None for the caller's own.

    It must have a passwd entry: `initdb` looks its name up.
    """
    if not is_root():
        return None
    import pwd  # does not exist on Windows

    if data_directory.exists():  # its owner, even if a better account was added since
        entry = pwd.getpwuid(data_directory.stat().st_uid)
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    known = {each.pw_name: each for each in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in known:
            return Account(name, known[name].pw_uid, known[name].pw_gid)
    raise LauncherError("Root needs an account `postgres` or `nobody` to run PostgreSQL under.")


def run_as(
    account: Account | None, command: Sequence[str], *, inherited: Collection[int] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end under the account; the file descriptors stay open in it."""
    return subprocess.run(  # noqa: S603 # our own programs and arguments, no shell
        command,
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        cwd="/",  # the caller's directory may be closed to the account
        env=_environment(),
        umask=0o077,
        pass_fds=inherited,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )


def _environment() -> dict[str, str]:
    """Return the caller's environment without variables that change the server, such as PGDATA.

    LC_ALL, because on macOS PostgreSQL refuses to start under an unknown locale.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}
