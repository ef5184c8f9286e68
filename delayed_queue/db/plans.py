"""For which prepared statements the server keeps a plan, and which it plans each time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_PLAN_EACH_TIME: Final = "SET plan_cache_mode = force_custom_plan"

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


def tell_how_to_plan(connection: BaseDatabaseWrapper) -> bool:
    """Say it to the server; return False inside a transaction, whose rollback would undo it."""
    if not connection.get_autocommit():
        return False
    raw = connection.connection
    with connection.wrap_database_errors:
        try:
            raw.execute(_KEEP_PLANS if keeps_plans() else _PLAN_EACH_TIME)
        finally:
            if raw.closed:  # an atomic block that comes next would not replace it
                connection.close()
    return True
