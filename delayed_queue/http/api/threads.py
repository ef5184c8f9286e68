"""One bounded pool of threads for synchronous views, so that connections are few and kept.

Under ASGI Django runs each synchronous view in a new thread, and connections belong to threads:
each request would connect to PostgreSQL anew.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakSet

from django.db import connections

from delayed_queue.db.resilience import tend
from delayed_queue.http.conf import api_settings

P = ParamSpec("P")
T = TypeVar("T")


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="delayed-queue-api")


def pool() -> ThreadPoolExecutor:
    """Return the process's pool (setting THREADS)."""
    return _pool(api_settings().THREADS)


# The threads stay with the parent.
os.register_at_fork(after_in_child=_pool.cache_clear)


# What the threads have opened, to be closed by another.
_opened: Final[WeakSet[Any]] = WeakSet()


def in_event_loop() -> bool:
    """Return whether the calling thread runs one: then it must not wait for the database."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def submit(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Have the function called in a thread of the pool, with this context's variables."""
    context = contextvars.copy_context()
    return pool().submit(context.run, _tended, partial(function, *args, **kwargs))


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what the function returns in a thread of the pool."""
    return await asyncio.wrap_future(submit(function, *args, **kwargs))


def close() -> None:
    """Wait for the threads to end, and close their connections; a later call begins anew."""
    pool().shutdown()
    _pool.cache_clear()
    for each in list(_opened):
        each.inc_thread_sharing()
        each.close()


def _tended(call: Callable[[], T]) -> T:
    """Call it on connections that are usable; Django tends those of its own threads only."""
    opened: Any = connections.all(initialized_only=True)
    for each in opened:
        each.close_at = None  # few threads, long lived: CONN_MAX_AGE is for the many
        tend(each)
    try:
        return call()
    finally:
        _opened.update(connections.all(initialized_only=True))
