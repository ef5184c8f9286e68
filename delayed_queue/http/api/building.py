"""Build an API: problems for errors, documented answers, one bounded pool of threads.

Under ASGI Django runs each synchronous view in a new thread, and connections belong to threads:
each request would connect to PostgreSQL anew.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial, wraps
from http import HTTPStatus
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from weakref import WeakSet

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import connections
from django.db.transaction import non_atomic_requests
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotAllowed,
    UnreadablePostError,
)
from django.urls import URLPattern, path, re_path
from django.urls.resolvers import ResolverMatch, URLResolver
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationErrorContext
from ninja.parser import Parser

from delayed_queue.db.resilience import is_unavailable, tend
from delayed_queue.exceptions import (
    CallbacksOff,
    InvalidJob,
    InvalidMessage,
    OutcomeUnknown,
    UrlRefused,
)
from delayed_queue.http.api.bodies import (
    MAX_PATH,
    Problem,
    admit,
    callbacks_off,
    parse,
    rule_of,
    unauthorized,
    unavailable,
)
from delayed_queue.http.api.clients import stop_reading
from delayed_queue.http.api.docs import described, openapi_file
from delayed_queue.http.api.queries import check_query, parameters_of
from delayed_queue.http.conf import api_settings
from delayed_queue.observe.logs import log

P = ParamSpec("P")
T = TypeVar("T")
View = Callable[..., Any]
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


class Quick(NamedTuple):
    """What answers plain requests in a view's place, some of them on an event loop itself.

    Without ninja, which takes longer than to add a job. Problems that it raises are answered as
    those of the view are.
    """

    takes: Callable[[HttpRequest], bool]
    view: View
    takes_in_loop: Callable[[HttpRequest], bool] = lambda request: False
    view_in_loop: View | None = None

    def or_else(self, view: View) -> View:
        @wraps(view)
        def choose(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if not self.takes(request):
                return view(request, *args, **kwargs)
            try:
                return self.view(request)
            # As Ninja does: a problem, and logged if it is ours.
            except Exception as error:
                return respond(request, error)

        return choose

    def in_loop_or_else(self, view: View) -> View:
        @wraps(view)
        async def choose(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if self.view_in_loop is None or not self.takes_in_loop(request):
                return await view(request, *args, **kwargs)
            try:
                return await self.view_in_loop(request)
            # As above.
            except Exception as error:
                return respond(request, error)

        return unstoppable(markcoroutinefunction(choose))


def in_pool(pattern: URLPattern, quick: Quick | None = None) -> URLPattern:
    """Return the pattern with its view, if it is synchronous, in the pool of threads under ASGI.

    ``quick`` is what is called instead of the view where it can be.

    With ATOMIC_REQUESTS, too, it is in no transaction: what a call answers must be committed, and
    a pop that waits must hold none.
    """
    view = pattern.callback if quick is None else quick.or_else(pattern.callback)
    for alias in connections:
        view = non_atomic_requests(using=alias)(view)
    return _Pattern(pattern, view, quick)


class _Pattern(URLPattern):
    """A synchronous view as it is under WSGI, and in the pool of threads under ASGI.

    The handler that resolves within an event loop is Django's asynchronous one. Under WSGI, and
    in Django's test client, the view runs where it is: in the caller's thread and transaction.
    """

    def __init__(self, pattern: URLPattern, view: View, quick: Quick | None) -> None:
        super().__init__(pattern.pattern, view, pattern.default_args, pattern.name)
        run = view if iscoroutinefunction(view) else pooled(view)
        self._in_loop = run if quick is None else quick.in_loop_or_else(run)

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


def make_api(
    title: str,
    version: str,
    urls_namespace: str,
    *,
    description: str = "",
    auth: Any = None,
) -> Api:
    """Return an empty API in the manner of the package; ``auth`` is for routes that name none.

    Mount it with ``path("v1/", api.urls)``. It serves its description at
    ``openapi.json`` and answers what it does not know below that path, too.
    """
    return Api(
        title=title,
        version=version,
        description=description,
        urls_namespace=urls_namespace,
        auth=[auth] if auth is not None else None,
        parser=StrictParser(),
        openapi_url=None,
        docs_url=None,
    )


class StrictParser(Parser):
    """Ninja's parser with the package's reading of JSON."""

    def parse_body(self, request: HttpRequest) -> Any:
        return parse(request.body, api_settings().DEPTH)


class Api(NinjaAPI):
    """A NinjaAPI whose errors are problems and whose synchronous views share a pool."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # By the name of the route: what is called instead of it for requests that are plain.
        self.quick: dict[str, Quick] = {}
        self.default_router.add_decorator(_admitting, mode="view")

    def set_default_exception_handlers(self) -> None:
        # One for all: the classes of exceptions are told apart there.
        self.add_exception_handler(Exception, respond)

    def validation_error_from_error_contexts(
        self, error_contexts: list[ValidationErrorContext[Any]]
    ) -> Any:
        """Return a problem that names each wrong field, and quotes no value."""
        errors = (
            _field_error(context.model, each)
            for context in error_contexts
            for each in context.pydantic_validation_error.errors(
                include_url=False, include_input=False, include_context=False
            )
        )
        return Problem(400, "invalid_request", "Invalid request", errors=errors)

    @property
    def urls(self) -> tuple[list[URLPattern | URLResolver], str, str]:
        patterns, app_name, namespace = super().urls
        # Without ninja's root, which only says where its documentation would be.
        made: list[URLPattern | URLResolver] = [
            in_pool(
                URLPattern(each.pattern, answering(each.callback), each.default_args, each.name),
                self.quick.get(each.name or ""),
            )
            for each in patterns
            if isinstance(each, URLPattern) and each.name != "api-root"
        ]
        made += [
            path("openapi.json", openapi_file(self), name="openapi-json"),
            re_path("", unknown, name="unknown"),
        ]
        return made, app_name, namespace

    def get_openapi_schema(self, **kwargs: Any) -> Any:
        return described(super().get_openapi_schema(**kwargs), self)


def unknown(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
    """Answer 404 to a path that is not there."""
    return Problem(404, "not_found").as_response()


unknown.csrf_exempt = True  # type: ignore[attr-defined] # no token is asked of whoever goes wrong


def _field_error(model: Any, error: Any) -> dict[str, str]:
    where: tuple[Any, ...] = model.__ninja_flatten_map_reverse__.get(error["loc"], error["loc"])
    # Ninja puts a sole body below the name of the view's argument, which no caller knows.
    if getattr(model, "__read_from_single_attr__", None):
        where = where[1:]
    source = str(model.__ninja_param_source__)
    return {"in": source, "path": _dotted(where)[:MAX_PATH], "message": error["msg"]}


def _dotted(where: tuple[Any, ...]) -> str:
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in where)
    return text.removeprefix(".")


def _admitting(run: Any) -> Any:
    """Check the query and read the body, bounded and of the right type, after the token's check.

    A caller without a token could otherwise hold a thread of a WSGI server by half a body.
    """
    operation: Any = run.__self__
    rule, parameters = rule_of(operation), parameters_of(operation)
    check_token = operation._run_checks  # noqa: SLF001

    def refused(request: HttpRequest) -> HttpResponseBase | None:
        try:
            check_query(request.GET, *parameters)
            admit(request, rule)
        # As Ninja does for what an operation raises: a problem, and logged if it is ours.
        except Exception as error:
            return respond(request, error)
        return None

    def check(request: HttpRequest) -> HttpResponseBase | None:
        return check_token(request) or refused(request)

    async def check_async(request: HttpRequest) -> HttpResponseBase | None:
        return await check_token(request) or refused(request)

    operation._run_checks = check_async if operation.is_async else check  # noqa: SLF001
    return run


def answering(view: View) -> View:
    """Have ninja's own answers (405) be problems too."""

    def finished(response: HttpResponseBase) -> HttpResponseBase:
        if isinstance(response, HttpResponseNotAllowed):
            allow = {"Allow": response.headers["Allow"]}
            return Problem(405, "method_not_allowed", headers=allow).as_response()
        if response.status_code == HTTPStatus.NO_CONTENT:
            del response.headers["Content-Type"]
        return response

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        return finished(view(request, *args, **kwargs))

    @wraps(view)
    async def answer_async(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        return finished(await view(request, *args, **kwargs))

    return answer_async if iscoroutinefunction(view) else answer


_UNKNOWN: Final = (
    "The call may have taken effect. With an Idempotency-Key, send it again with "
    "the same key; otherwise read the job first."
)


def problem_of(error: BaseException) -> Problem | None:
    """Return the problem that an exception means; None when it is an error of the server."""
    if isinstance(error, Problem):
        return error
    # Ninja says "cannot parse" of anything that a parser raises.
    if isinstance(error, HttpError) and isinstance(error.__cause__, Problem):
        return error.__cause__
    if isinstance(error, CallbacksOff):
        return callbacks_off(error)
    if isinstance(error, OutcomeUnknown):
        return unavailable("outcome_unknown", _UNKNOWN)
    if is_unavailable(error):
        return unavailable()
    return _problem_of_request(error)


def _problem_of_request(error: BaseException) -> Problem | None:
    if isinstance(error, Http404):
        return Problem(404, "not_found")
    if isinstance(error, AuthenticationError):
        return unauthorized()
    if isinstance(error, InvalidMessage):
        return _problem_of_message(error)
    if isinstance(error, RequestDataTooBig):
        return Problem(413, "body_too_large")
    if isinstance(error, HttpError):
        return Problem(error.status_code, "refused", detail=error.message)
    if isinstance(error, BadRequest | SuspiciousOperation | UnreadablePostError):
        return Problem(400, "bad_request")
    return None


def _problem_of_message(error: InvalidMessage) -> Problem:
    if isinstance(error, InvalidJob):
        errors = [{"path": path, "message": message} for path, message in error.errors]
        return Problem(400, "invalid_request", "Invalid request", errors=errors)
    if isinstance(error, UrlRefused):
        errors = [{"path": "url", "message": str(error)}]
        return Problem(400, "url_refused", "URL refused", errors=errors)
    return Problem(400, "invalid_request", "Invalid request", str(error))


def respond(request: HttpRequest, error: Any) -> HttpResponse:
    """Return the response to an exception; what is the server's fault is logged and signalled."""
    problem = problem_of(error)
    if problem is None:
        problem = Problem(500, "internal_error", detail="The error has been logged.")
        _log(request, error)
        got_request_exception.send(sender=None, request=request)
    elif problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log(logging.WARNING, "api_unavailable", code=problem.code, error=type(error).__name__)
    if problem.status == HTTPStatus.UNAUTHORIZED:
        stop_reading(request)
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not in_event_loop():
        # What the next request, or probe, would fail on as well.
        for each in connections.all(initialized_only=True):
            tend(each)
    return problem.as_response()


def _log(request: HttpRequest, error: BaseException) -> None:
    match = request.resolver_match
    fields = {"method": request.method, "route": match.route if match else "?"}
    where = _TextLeftOut().with_traceback(error.__traceback__)
    log(logging.ERROR, "api_request_failed", where, **fields, error=type(error).__name__)


class _TextLeftOut(Exception):
    """Stands for an exception whose text may quote what the caller sent."""
