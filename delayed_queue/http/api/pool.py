"""The pool of threads that runs synchronous work for event loops.

Under ASGI Django runs each synchronous view in a new thread. Connections belong to threads, so
each request would open a new one.
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
View = Callable[..., Any]
V = TypeVar("V", bound=View)


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="delayed-queue-api")


# A child process has none of the parent's threads.
os.register_at_fork(after_in_child=_pool.cache_clear)

# Connections that threads of the pool have opened; another thread closes them.
_opened: Final[WeakSet[Any]] = WeakSet()


def pool() -> ThreadPoolExecutor:
    """Return the process's pool (setting THREADS)."""
    return _pool(api_settings().THREADS)


def in_event_loop() -> bool:
    """Return whether the calling thread runs a loop, which must not wait for the database."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def submit(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call the function in a pool thread, with the current context variables."""
    context = contextvars.copy_context()
    return pool().submit(context.run, _tended, partial(function, *args, **kwargs))


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of the function, called in a pool thread if this one runs a loop."""
    if not in_event_loop():
        return function(*args, **kwargs)
    return await asyncio.wrap_future(submit(function, *args, **kwargs))


def close() -> None:
    """Wait for the threads to end, and close their connections; a later call starts a new pool."""
    pool().shutdown()
    _pool.cache_clear()
    for each in list(_opened):
        each.inc_thread_sharing()
        each.close()


def _tended(call: Callable[[], T]) -> T:
    """Call it on usable connections; Django checks those of its own threads only."""
    opened: Any = connections.all(initialized_only=True)
    for each in opened:
        each.close_at = None  # the threads are few and live long, so CONN_MAX_AGE does not apply
        tend(each)
    try:
        return call()
    finally:
        _opened.update(connections.all(initialized_only=True))
