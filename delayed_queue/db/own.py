"""Connections that a worker opens for itself, outside of Django's pool."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from django.db import connections

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_own: Final[WeakSet[BaseDatabaseWrapper]] = WeakSet()
_thread: Final = threading.local()


def is_own(connection: BaseDatabaseWrapper) -> bool:
    """True if only statements of the package run on the connection."""
    return connection in _own


def own_connection(using: str, **options: str) -> BaseDatabaseWrapper:
    """Return a new connection for statements of the package, outside of Django's pool.

    Its planner is set for these, and would plan other queries badly. ``options`` are libpq's.
    """
    made = connections.create_connection(using)
    unpooled = {"pool": False} if is_in_pool(made) else {}
    options_of_all = made.settings_dict["OPTIONS"]
    made.settings_dict = {
        **made.settings_dict, "OPTIONS": {**options_of_all, **unpooled, **options},
    }  # fmt: skip
    _own.add(made)
    return made


@contextmanager
def using_own_connection(using: str, **options: str) -> Iterator[None]:
    """Use a connection of our own in this thread, unless a transaction is open."""
    projects = connections[using]
    if projects.in_atomic_block:
        yield
        return
    projects.close()
    own = connections[using] = own_connection(using, **options)
    _thread.projects = using, projects
    try:
        yield
    finally:
        del _thread.projects
        connections[using] = projects
        own.close()
        projects.close()


@contextmanager
def using_projects_connection() -> Iterator[None]:
    """Use the project's connection inside ``using_own_connection``, for code of the project."""
    found = getattr(_thread, "projects", None)
    if found is None:
        yield
        return
    using, projects = found
    own, connections[using] = connections[using], projects
    try:
        yield
    finally:
        connections[using] = own
        if projects.errors_occurred:
            projects.close_if_unusable_or_obsolete()


def is_in_pool(connection: BaseDatabaseWrapper) -> bool:
    """True if the connection belongs to Django's pool."""
    return bool(connection.settings_dict["OPTIONS"].get("pool"))


def pool_size(using: str) -> int | None:
    """Return the maximum size of the alias's pool; None without Django's pool."""
    pool = connections[using].settings_dict["OPTIONS"].get("pool")
    if not pool:
        return None
    chosen = {} if pool is True else pool
    least = int(chosen.get("min_size", 4))  # the default of psycopg_pool
    return int(chosen.get("max_size") or least)
