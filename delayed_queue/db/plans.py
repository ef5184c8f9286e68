"""Choose for which prepared statements PostgreSQL keeps a plan, and which it plans each time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import psycopg
from django.db import connections

from delayed_queue.conf import get_settings

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_PLAN_EACH_TIME: Final = "SET plan_cache_mode = force_custom_plan"
_told: Final[WeakSet[psycopg.Connection[Any]]] = WeakSet()

# On a connection that runs nothing else, plans are kept, and can be: with these settings even
# one that is made on an empty table goes by the index. A third of a single claim is planning.
# What runs there needs no more than READ COMMITTED, and would fail where it can wait or pass over.
_KEEP_PLANS: Final = """
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
SET default_transaction_isolation = 'read committed'
"""
_thread = threading.local()


def keep_plans(keep: bool = True) -> None:
    """Have this thread's new connections keep the plans of the package's statements.

    For a thread whose connections run nothing else: other queries would be planned badly.
    """
    _thread.keeps_plans = keep


def keeps_plans() -> bool:
    return getattr(_thread, "keeps_plans", False)


def plan_each_time(using: str) -> bool:
    """Have what is prepared on the connection planned each time; return whether it may be.

    Or once and for all, where the thread asked for it. Once per connection, a round trip. Not
    inside a transaction, whose rollback would undo it; so to be called before one that runs
    many statements on a new connection.
    """
    connection = connections[using]
    if not prepares(connection):
        return False
    connection.ensure_connection()
    raw = connection.connection
    # A pooler's session is others' too, and what is set in it stays.
    if raw in _told or is_pooled(connection):
        return True
    if not connection.get_autocommit():
        return False
    with connection.wrap_database_errors:
        try:
            raw.execute(_KEEP_PLANS if keeps_plans() else _PLAN_EACH_TIME)
        finally:
            if raw.closed:  # an atomic block that comes next would not replace it
                connection.close()
    _told.add(raw)
    return True


def prepares(connection: BaseDatabaseWrapper) -> bool:
    """Return whether statements are prepared on this alias (setting PREPARE)."""
    chosen = get_settings().PREPARE
    if chosen is not None:
        return chosen
    return not is_pooled(connection)


def is_pooled(connection: BaseDatabaseWrapper) -> bool:
    return bool(connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS", False))
