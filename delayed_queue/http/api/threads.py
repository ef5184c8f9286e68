"""One bounded pool of threads for synchronous views, so that connections are few and kept.

Under ASGI Django runs each synchronous view in a new thread, and connections belong to threads:
each request would connect to PostgreSQL anew.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial, wraps
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakSet

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.db import connections
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest
from django.urls import URLPattern
from django.urls.resolvers import ResolverMatch

from delayed_queue.db.resilience import tend
from delayed_queue.http.conf import api_settings

P = ParamSpec("P")
T = TypeVar("T")
View = Callable[..., Any]
LoopView = Callable[[View], View]
V = TypeVar("V", bound=View)
_UNSTOPPABLE: Final = "delayed_queue_unstoppable"


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


def in_pool(pattern: URLPattern, in_loop: LoopView | None = None) -> URLPattern:
    """Return the pattern with its view, if it is synchronous, in the pool of threads under ASGI.

    ``in_loop`` makes of that what is called on the event loop instead.

    With ATOMIC_REQUESTS, too, it is in no transaction: what a call answers must be committed, and
    a pop that waits must hold none.
    """
    view = pattern.callback
    for alias in connections:
        view = non_atomic_requests(using=alias)(view)
    return _Pattern(pattern, view, in_loop)


class _Pattern(URLPattern):
    """A synchronous view as it is under WSGI, and in the pool of threads under ASGI.

    The handler that resolves within an event loop is Django's asynchronous one. Under WSGI, and
    in Django's test client, the view runs where it is: in the caller's thread and transaction.
    """

    def __init__(self, pattern: URLPattern, view: View, in_loop: LoopView | None) -> None:
        super().__init__(pattern.pattern, view, pattern.default_args, pattern.name)
        run = view if iscoroutinefunction(view) else pooled(view)
        self._in_loop = run if in_loop is None else in_loop(run)

    def resolve(self, path: str) -> ResolverMatch | None:
        match = super().resolve(path)
        if match is not None and in_event_loop():
            match.func = self._in_loop
        return match


def pooled(view: View) -> Callable[..., Awaitable[Any]]:
    """Return the view as a coroutine function that runs in the pool of threads."""

    @wraps(view)
    async def run(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return await in_thread(view, request, *args, **kwargs)

    return unstoppable(markcoroutinefunction(run))


def unstoppable(view: V) -> V:
    """Mark a view that goes on when its client has gone: nothing is to be told of that."""
    setattr(view, _UNSTOPPABLE, True)
    return view


def is_stoppable(view: View) -> bool:
    return iscoroutinefunction(view) and not hasattr(view, _UNSTOPPABLE)
