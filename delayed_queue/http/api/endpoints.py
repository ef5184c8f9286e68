"""Endpoints: method, path, types and view of each call, and how Django calls them.

Decorators declare endpoints. The URLs of an API and its description follow from them::

    calls = Endpoints("orders")

    @calls.get("topics/<topic>/stats", "read")
    def stats(request: ApiRequest, topic: TopicName, query: StatsQuery) -> Stats: ...

    api = Api("Orders", "1", "orders-api", "Orders by topic.", calls)

The view's annotations are the types of its path parameters, of its ``query``, its ``body`` and its
reply; None is 204. A reply may be a dataclass, whose names are written in camelCase. The first line
of the docstring is the summary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction
from django.db import connections
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.urls.resolvers import ResolverMatch, RoutePattern
from msgspec import Struct, convert, defstruct, structs

from delayed_queue.http.api.auth import let_in
from delayed_queue.http.api.bodies import JSON, Limit, admit, nothing, read_object, reply
from delayed_queue.http.api.pool import V, View, in_event_loop, in_thread
from delayed_queue.http.api.problems import Source, invalid, not_allowed, respond
from delayed_queue.http.api.replies import reply_type
from delayed_queue.http.reading import Errors, read
from delayed_queue.http.tokens import VERBS

S = TypeVar("S", bound=Struct)

_PARAMETER: Final = re.compile(r"<(?:\w+:)?(\w+)>")


class NoFields(Struct, forbid_unknown_fields=True):
    """A query without parameters."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One call: its view, who may call it, and its types.

    ``verb``: what a token must allow; None for calls without a token.
    ``answers``: the type of each successful status, None for no content and for errors.
    ``accepts``: the type of a body by its media type; a view without ``body`` reads it itself.
    ``limit``: picks the setting that limits the body.
    ``waits``: the view needs a running event loop under WSGI too.
    """

    method: str
    route: str
    view: View
    verb: str | None
    answers: Mapping[int, Any]
    tag: str = ""
    accepts: Mapping[str, Any] = field(default_factory=dict)
    limit: Limit = lambda settings: settings.BODY_BYTES
    headers: Sequence[Mapping[str, Any]] = ()
    waits: bool = False
    path_type: type[Struct] = NoFields
    query_type: type[Struct] = NoFields
    body_type: type[Struct] | None = None
    lists: frozenset[str] = frozenset()

    def respond(self, request: Any, **named: Any) -> HttpResponse:
        """Return the response; without an event loop, as under WSGI."""
        response: HttpResponse = _finish(self.respond_in_loop(request, **named))
        return response

    async def respond_in_loop(self, request: Any, **named: Any) -> HttpResponse:
        """Return the response; a loop has synchronous views run by a thread of the pool."""
        if in_event_loop() and not iscoroutinefunction(self.view):
            return await in_thread(self.respond, request, **named)
        try:
            if self.verb is not None:
                request.auth = await let_in(request, self.verb)
            found = self.view(request, **self._arguments(request, named))
            return self._response(await found if isinstance(found, Coroutine) else found)
        # A problem is the answer; an error of the server is logged and answered 500.
        except Exception as error:
            return respond(request, error)

    def _arguments(self, request: HttpRequest, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the view's arguments; the body is read last, after the token's check.

        A caller without a token could otherwise hold a thread of a WSGI server by half a body.
        """
        found: dict[str, Any] = {}
        if named:
            found = structs.asdict(_read("path", self.path_type, named))
        if self.query_type is not NoFields or request.META.get("QUERY_STRING"):
            query = self._query(request)
            found |= {} if self.query_type is NoFields else {"query": query}
        admit(request, self.limit, self.accepts)
        if self.body_type is not None:
            found["body"] = _read("body", self.body_type, read_object(request.body))
        return found

    def _query(self, request: HttpRequest) -> Struct:
        given = dict(request.GET.lists())
        twice = [
            (name, "The parameter must not be repeated.")
            for name, values in given.items()
            if len(values) > 1 and name not in self.lists
        ]
        single = {
            name: values if name in self.lists else values[0] for name, values in given.items()
        }
        return _read("query", self.query_type, single, twice)

    def _response(self, found: Any) -> HttpResponse:
        if isinstance(found, HttpResponse):
            return found
        if found is None:
            return nothing()
        status = min(self.answers)
        return reply(status, convert(found, self.answers[status], from_attributes=True))


def _read(
    source: Source, kind: type[S], given: Mapping[str, Any], wrong: Errors | None = None
) -> S:
    errors: Errors = wrong or []
    noun = "parameter" if source == "query" else "field"
    found = read(kind, given, errors, noun=noun, strict=source == "body")
    if found is None or errors:
        raise invalid(source, errors)
    return found


def _finish(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that does not wait for anything without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("The view awaits something: declare it with waits=True.")


class Endpoints(list[Endpoint]):
    """The endpoints of an API, or a part of it, declared by decorators."""

    def __init__(self, tag: str = "") -> None:
        super().__init__()
        self._tag = tag

    def get(self, route: str, verb: str | None, **declared: Any) -> Callable[[V], V]:
        return partial(self._add, "GET", route, verb, declared)

    def post(self, route: str, verb: str | None, **declared: Any) -> Callable[[V], V]:
        return partial(self._add, "POST", route, verb, declared)

    def delete(self, route: str, verb: str | None, **declared: Any) -> Callable[[V], V]:
        return partial(self._add, "DELETE", route, verb, declared)

    def _add(
        self, method: str, route: str, verb: str | None, declared: dict[str, Any], view: V
    ) -> V:
        self.append(endpoint(method, route, verb, view, tag=self._tag, **declared))
        return view


def endpoint(
    method: str,
    route: str,
    verb: str | None,
    view: View,
    *,
    status: int = 200,
    answer: Any = None,
    errors: Sequence[int] = (),
    **declared: Any,
) -> Endpoint:
    """Return the endpoint of a view, with the types of its annotations.

    ``status`` is that of a success, ``answer`` its type where the view makes the response itself,
    ``errors`` are the statuses of errors of its own.
    """
    if verb is not None and verb not in VERBS:
        raise ValueError(f"{verb!r} is not one of the verbs {', '.join(VERBS)}.")
    types = get_type_hints(view, include_extras=True)
    query, body = types.get("query", NoFields), types.get("body")
    if body is not None:
        declared["accepts"] = {JSON: body}
    return Endpoint(
        method, route, view, verb, **declared,
        answers=_answers(status, answer or types["return"]) | dict.fromkeys(errors),
        path_type=defstruct("Path", [(each, types[each]) for each in _PARAMETER.findall(route)]),
        query_type=query,
        body_type=body,
        lists=frozenset(each.name for each in structs.fields(query) if _is_list(each.type)),
    )  # fmt: skip


def _answers(status: int, kind: Any) -> dict[int, Any]:
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return {204 if each is NoneType else status: None if each is NoneType else reply_type(each)
            for each in kinds}  # fmt: skip


def _is_list(kind: Any) -> bool:
    return any(get_origin(each) is list for each in (kind, *get_args(kind)))


def pattern_of(route: str, endpoints: Mapping[str, Endpoint]) -> URLPattern:
    """Return the pattern of the endpoints of one route, by method."""

    def answer(request: HttpRequest, **named: Any) -> HttpResponse:
        found = endpoints.get(request.method or "")
        if found is None:
            return not_allowed(endpoints).as_response()
        if found.waits:
            return async_to_sync(found.respond_in_loop)(request, **named)
        return found.respond(request, **named)

    async def answer_in_loop(request: HttpRequest, **named: Any) -> HttpResponse:
        found = endpoints.get(request.method or "")
        if found is None:
            return not_allowed(endpoints).as_response()
        return await found.respond_in_loop(request, **named)

    (name, *_) = (each.view.__name__ for each in endpoints.values())
    return TwoWayPattern(route, answer, markcoroutinefunction(answer_in_loop), name)


class TwoWayPattern(URLPattern):
    """A pattern whose view is a coroutine function where an event loop resolves it.

    That is Django's asynchronous handler. Under WSGI, and in Django's test client, the view runs in
    the caller's thread and transaction. With ATOMIC_REQUESTS, too, it is in no transaction of the
    request: what a call answers is committed, and a pop that waits holds none.
    """

    def __init__(self, route: str, view: View, in_loop: View, name: str) -> None:
        super().__init__(RoutePattern(route, name=name, is_endpoint=True), _free(view), name=name)
        self._in_loop = _free(in_loop)

    def resolve(self, path: str) -> ResolverMatch | None:
        match = super().resolve(path)
        if match is not None and in_event_loop():
            match.func = self._in_loop
        return match


def _free(view: View) -> View:
    for alias in connections:
        view = non_atomic_requests(using=alias)(view)
    view.csrf_exempt = True  # type: ignore[attr-defined] # callers show tokens, not cookies
    return view


def pooled_path(route: str, view: View, name: str) -> URLPattern:
    """Return the pattern of a synchronous view that runs in the pool of threads under ASGI."""

    @wraps(view)
    async def run(request: HttpRequest, **path: Any) -> Any:
        return await in_thread(view, request, **path)

    return TwoWayPattern(route, view, markcoroutinefunction(run), name)
