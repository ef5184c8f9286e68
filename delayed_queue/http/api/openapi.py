"""An API of endpoints: its URLs, and its description as an OpenAPI 3.1 document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from inspect import getdoc
from typing import Any, Final

from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, re_path
from msgspec.json import schema, schema_components

from delayed_queue.conf import section
from delayed_queue.http.api.endpoints import Endpoint, pattern_of
from delayed_queue.http.api.problems import MEDIA_TYPE, Problem, ProblemReply, not_allowed
from delayed_queue.http.reading import SURROGATES, describe_custom

Schema = dict[str, Any]

_TEXTS: Final = {
    400: "The request is malformed or a field is invalid; errors names the fields.",
    401: "The token is missing, unknown, expired or revoked.",
    403: "The token does not allow this call or topic, or the topic is not served.",
    404: "Not found.",
    409: "The state of the resource does not allow this; code has the reason.",
    413: "The body is too large.",
    415: "The call does not accept this media type.",
    422: "The Idempotency-Key was used for a different request.",
    429: "The token's rate is exceeded. Retry after the time in Retry-After.",
    500: "The server failed and logged the error.",
    503: "The server cannot do this now. code has the reason, Retry-After the time to wait.",
}
_RETRY_AFTER: Final = {
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
}
_WITH_RETRY: Final = frozenset({429, 503})
_PARAMETER: Final = re.compile(r"<(?:\w+:)?(\w+)>")
_REFERENCE: Final = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class Api:
    """Endpoints under one prefix, with their description at ``openapi.json``.

    Mount it with ``path("v1/", api.urls)``. Unknown paths below it are answered 404.
    """

    title: str
    version: str
    namespace: str
    description: str
    endpoints: Sequence[Endpoint]
    # Views for browsers beside them, which the description does not contain.
    pages: Sequence[URLPattern] = ()

    @property
    def urls(self) -> tuple[list[URLPattern], str, str]:
        """Return the patterns, in the order of the endpoints: Django tries one after the other."""
        by_route: dict[str, dict[str, Endpoint]] = {}
        for each in self.endpoints:
            by_route.setdefault(each.route, {})[each.method] = each
        patterns: list[URLPattern] = [pattern_of(*each) for each in by_route.items()]
        patterns += [
            *self.pages,
            path("openapi.json", description_view(self), name="openapi-json"),
            re_path("", _unknown, name="unknown"),
        ]
        return patterns, self.namespace, self.namespace


def describe(api: Api, *, prefix: str = "/") -> Schema:
    """Return the document; ``prefix`` is where the API is mounted."""
    types = list(dict.fromkeys([ProblemReply, *_types_of(api.endpoints)]))
    found, components = schema_components(
        types, schema_hook=describe_custom, ref_template=_REFERENCE
    )
    by_type = dict(zip(types, found, strict=True))
    paths: dict[str, Schema] = {}
    for each in api.endpoints:
        name = prefix + _PARAMETER.sub(r"{\1}", each.route)
        paths.setdefault(name, {})[each.method.lower()] = _operation(each, by_type)
    security = {"BearerToken": {"type": "http", "scheme": "bearer"}}
    return _adapted({
        "openapi": "3.1.0",
        "info": {"title": api.title, "version": api.version, "description": api.description},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": security},
    })  # fmt: skip


def schema_of(kind: Any) -> Schema:
    """Return the schema of a type by itself."""
    return _adapted(schema(kind, schema_hook=describe_custom))


def _types_of(endpoints: Sequence[Endpoint]) -> Iterator[Any]:
    for each in endpoints:
        yield from each.accepts.values()
        yield from (kind for kind in each.answers.values() if kind is not None)


def _operation(endpoint: Endpoint, by_type: Mapping[Any, Schema]) -> Schema:
    summary, _, description = (getdoc(endpoint.view) or "").partition("\n\n")
    made: Schema = {
        "operationId": endpoint.view.__name__,
        "summary": summary,
        "description": description,
        "tags": [endpoint.tag],
        "parameters": [*_parameters(endpoint), *endpoint.headers],
        "responses": {str(status): _response(endpoint, status, by_type)
                      for status in _statuses(endpoint)},
    }  # fmt: skip
    if endpoint.accepts:
        content = {media: {"schema": by_type[kind]} for media, kind in endpoint.accepts.items()}
        made["requestBody"] = {"required": True, "content": content}
    if endpoint.verb is not None:
        made["security"] = [{"BearerToken": []}]
    return made


def _parameters(endpoint: Endpoint) -> Iterator[Schema]:
    for place, kind in (("path", endpoint.path_type), ("query", endpoint.query_type)):
        # By itself: a parameter may reference an enumeration, which must be inlined.
        found = schema(kind, schema_hook=describe_custom)
        definitions = found["$defs"]
        (own,) = [definitions.pop(found["$ref"].rpartition("/")[2])]
        for name, described in own["properties"].items():
            yield {
                "in": place, "name": name, "required": name in own["required"],
                "schema": _inlined(described, definitions),
            }  # fmt: skip


def _inlined(value: Any, definitions: Mapping[str, Schema]) -> Any:
    if isinstance(value, list):
        return [_inlined(each, definitions) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: _inlined(each, definitions) for name, each in value.items() if name != "$ref"}
    reference = value.get("$ref")
    return found if reference is None else definitions[reference.rpartition("/")[2]] | found


def _statuses(endpoint: Endpoint) -> list[int]:
    """Return the statuses of an endpoint, with the errors that any call may be answered."""
    found = {*endpoint.answers, 400, 500, 503}
    if endpoint.method != "GET":
        found.add(413)
    if endpoint.accepts:
        found.add(415)
    if endpoint.verb is not None:
        found |= {401, 403, 429}
    return sorted(found)


def _response(endpoint: Endpoint, status: int, by_type: Mapping[Any, Schema]) -> Schema:
    if status >= 400:
        made: Schema = {"content": {MEDIA_TYPE: {"schema": by_type[ProblemReply]}}}
        if status in _WITH_RETRY:
            made["headers"] = _RETRY_AFTER
        return {"description": _TEXTS[status], **made}
    kind = endpoint.answers[status]
    if kind is None:
        return {"description": "No content."}
    return {"description": "OK.", "content": {"application/json": {"schema": by_type[kind]}}}


def _adapted(document: Schema) -> Schema:
    """Return a copy in the dialect of JSON Schema.

    A limit that is named, as "API.POP_COUNT", becomes that of the setting. Patterns of Python lose
    what ECMAScript lacks.
    """
    return {name: _ADAPTERS.get(name, _adapted_part)(each) for name, each in document.items()}


def _adapted_part(value: Any) -> Any:
    if isinstance(value, list):
        return [_adapted_part(each) for each in value]
    return _adapted(value) if isinstance(value, dict) else value


def _limit(limit: Any) -> Any:
    if not isinstance(limit, str):
        return _adapted_part(limit)
    part, _, key = limit.partition(".")
    found = getattr(section(part), key)
    return found.total_seconds() if isinstance(found, timedelta) else found


def _pattern(pattern: Any) -> Any:
    if not isinstance(pattern, str):
        return _adapted_part(pattern)
    return pattern.replace(r"\Z", "$").replace(SURROGATES, "")


_ADAPTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "maximum": _limit, "maxItems": _limit, "pattern": _pattern,
}  # fmt: skip


def description_view(api: Api) -> Callable[..., HttpResponse]:
    """Return the view of the document; its paths begin as that of the request."""

    @lru_cache(maxsize=8)  # by prefix: a project mounts few, and a caller cannot make up more
    def text(prefix: str) -> bytes:
        return json.dumps(describe(api, prefix=prefix)).encode()

    # It has limits of the settings, which a test may change.
    setting_changed.connect(lambda **_: text.cache_clear(), weak=False)

    def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return not_allowed(("GET", "HEAD")).as_response()
        prefix = request.path.removesuffix("openapi.json")
        return HttpResponse(text(prefix), content_type="application/json")

    view.csrf_exempt = True  # type: ignore[attr-defined] # other methods are 405
    return view


def _unknown(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return Problem(404, "not_found").as_response()


_unknown.csrf_exempt = True  # type: ignore[attr-defined] # a wrong path is 404, whatever the method
