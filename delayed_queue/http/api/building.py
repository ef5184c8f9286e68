"""Build an API: problems for errors, one pool of threads, documented answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from http import HTTPStatus
from typing import Any, Final, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.db import connections
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponseBase, HttpResponseNotAllowed
from django.urls import URLPattern, path, re_path
from django.urls.resolvers import ResolverMatch, URLResolver
from ninja import NinjaAPI
from ninja.errors import ValidationErrorContext
from ninja.operation import Operation
from ninja.parser import Parser

from delayed_queue.http.api.bodies import MAX_PATH, Problem, admit, parse, rule_of
from delayed_queue.http.api.docs import described, docs_page, openapi_file
from delayed_queue.http.api.responding import respond
from delayed_queue.http.api.threads import in_event_loop, in_thread
from delayed_queue.http.conf import api_settings

View = Callable[..., Any]
LoopView = Callable[[View], View]
V = TypeVar("V", bound=View)
_UNSTOPPABLE: Final = "delayed_queue_unstoppable"


def make_api(
    title: str,
    version: str,
    urls_namespace: str,
    *,
    description: str = "",
    auth: Any = None,
) -> Api:
    """Return an empty API in the manner of the package; ``auth`` is for routes that name none.

    Mount it with ``path("v1/", api.urls)``. It serves its description at ``openapi.json``, a
    page of it at ``docs``, and answers what it does not know below that path, too.
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
        # By the name of the route: what is called instead of it on an event loop.
        self.in_loop: dict[str, LoopView] = {}
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
                self.in_loop.get(each.name or ""),
            )
            for each in patterns
            if isinstance(each, URLPattern) and each.name != "api-root"
        ]
        made += [
            path("openapi.json", openapi_file(self), name="openapi-json"),
            path("docs", docs_page(self), name="docs"),
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
    """Have the body read, bounded and of the right type, before an operation runs."""
    operation: Operation = run.__self__
    rule = rule_of(operation)

    def refused(request: HttpRequest) -> HttpResponseBase | None:
        try:
            admit(request, rule)
        # As Ninja does for what an operation raises: a problem, and logged if it is ours.
        except Exception as error:
            return respond(request, error)
        return None

    @wraps(run)
    def admitting(request: HttpRequest, **kwargs: Any) -> Any:
        return refused(request) or run(request, **kwargs)

    @wraps(run)
    async def admitting_async(request: HttpRequest, **kwargs: Any) -> Any:
        return refused(request) or await run(request, **kwargs)

    return admitting_async if operation.is_async else admitting


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
