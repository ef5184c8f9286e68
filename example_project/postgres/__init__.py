"""The PostgreSQL server that the example project and its tests run on, with nothing to install."""

from __future__ import annotations

from example_project.postgres.binaries import find_binaries, installed_binaries
from example_project.postgres.exceptions import BinariesNotFoundError, LauncherError
from example_project.postgres.server import (
    EmbeddedPostgres,
    database_url,
    default_directory,
    make_directory,
)

__all__ = [
    "BinariesNotFoundError",
    "EmbeddedPostgres",
    "LauncherError",
    "database_url",
    "default_directory",
    "find_binaries",
    "installed_binaries",
    "make_directory",
]
