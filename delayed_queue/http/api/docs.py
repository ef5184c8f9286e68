"""The description of an API as a file, and as a page that asks no other host."""

from __future__ import annotations

import json
from functools import lru_cache
from http import HTTPStatus
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.templatetags.static import static

from delayed_queue.http.api.problems import Problem
from delayed_queue.http.conf import api_settings

_METHODS: Final = ("get", "post", "put", "patch", "delete")
_BOUNDS: Final = {
    "minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters", "maxLength": "at most {} characters",
    "default": "default {}",
}  # fmt: skip


def page_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the context of the page."""
    calls = [
        _call(path, method, operation, schema["components"]["schemas"])
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
        if method in _METHODS
    ]
    calls.sort(key=itemgetter("group"))
    schemas = [
        {"name": name, **_described(each)}
        for name, each in sorted(schema["components"]["schemas"].items())
    ]
    groups = [(name, list(found)) for name, found in groupby(calls, itemgetter("group"))]
    return {"schema": schema, "groups": groups, "schemas": schemas}


def _call(
    path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]
) -> dict[str, Any]:
    return {
        "id": operation["operationId"],
        "group": (operation.get("tags") or ["calls"])[0],
        "method": method.upper(),
        "path": path,
        "summary": operation.get("summary", "").rstrip("."),
        "description": _plain(operation.get("description", "")),
        "is_guarded": "security" in operation,
        "parameters": [_field(each, each["schema"]) for each in operation.get("parameters", [])],
        "bodies": [
            _body(media, found.get("schema", {}), schemas)
            for media, found in operation.get("requestBody", {}).get("content", {}).items()
        ],
        "answers": [
            _answer(status, found) for status, found in sorted(operation["responses"].items())
        ],
    }


def _body(media: str, schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    known = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
    return {"media": media, "type": _type(schema), **_described(known)}


def _plain(text: str) -> str:
    return text.replace("`", "")


def _answer(status: str, response: dict[str, Any]) -> dict[str, Any]:
    schemas = [each.get("schema", {}) for each in response.get("content", {}).values()]
    text = response.get("description") or HTTPStatus(int(status)).phrase
    return {
        "status": status, "family": status[0], "description": _plain(text),
        "type": _type(schemas[0]) if schemas else "",
    }  # fmt: skip


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    required = schema.get("required", [])
    fields = [
        _field({"name": name, "required": name in required}, each)
        for name, each in schema.get("properties", {}).items()
    ]
    return {"description": _plain(schema.get("description", "")), "fields": fields}


def _field(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": field["name"],
        "in": field.get("in", ""),
        "required": field.get("required", False),
        "type": _type(schema),
        "description": _plain(field.get("description") or schema.get("description", "")),
    }


def _type(schema: dict[str, Any]) -> str:
    """Return a type and its bounds in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    for joined in ("anyOf", "oneOf", "allOf"):
        if joined in schema:
            return " or ".join(_type(each) for each in schema[joined])
    if "enum" in schema:
        return " or ".join(f"“{each}”" for each in schema["enum"])
    name = schema.get("type", "any")
    if name == "array":
        name = f"array of {_type(schema.get('items', {}))}"
    bounds = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    return ", ".join([f"{name} ({schema['format']})" if "format" in schema else str(name), *bounds])


View = Any
_STYLE: Final = "delayed_queue/api.css"


def openapi_file(api: Any) -> View:
    """Return the view of the description; paths are those under which it was asked for."""

    @lru_cache(maxsize=8)  # by prefix: one project may mount it twice, an attacker cannot
    def text(prefix: str) -> bytes:
        return json.dumps(api.get_openapi_schema(path_prefix=prefix)).encode()

    def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return Problem(405, "method_not_allowed", headers={"Allow": "GET, HEAD"}).as_response()
        prefix = request.path.removesuffix("openapi.json")
        return HttpResponse(text(prefix), content_type="application/json")

    view.csrf_exempt = True  # type: ignore[attr-defined]
    return view


def docs_page(api: Any) -> View:
    """Return the view of the page; 404 unless the setting DOCS, or DEBUG, shows it."""

    def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if not is_open():
            return Problem(404, "not_found").as_response()
        schema = api.get_openapi_schema(path_prefix=request.path.removesuffix("docs"))
        response = render(request, "delayed_queue/http/api/docs.html", page_of(schema))
        # Nothing is run and nothing fetched from elsewhere; where the project says more, it counts.
        response.headers.setdefault("Content-Security-Policy", _policy())
        return response

    return view


def _policy() -> str:
    """Allow the page its style sheet and nothing else; static files may be on another host."""
    place = urlsplit(static(_STYLE))
    host = f" {place.scheme}://{place.netloc}" if place.netloc else ""
    return f"default-src 'none'; style-src 'self'{host}; base-uri 'none'; form-action 'none'"


def is_open() -> bool:
    chosen = api_settings().DOCS
    return bool(settings.DEBUG) if chosen is None else chosen
