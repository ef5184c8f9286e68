"""The description of an API as a file, and as a page that asks no other host."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import lru_cache
from http import HTTPStatus
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.templatetags.static import static

from delayed_queue.conf import section
from delayed_queue.http.api.bodies import MEDIA_TYPE, Problem
from delayed_queue.http.conf import MAX_KEY, api_settings
from delayed_queue.http.jobs.jobs import (
    DEFAULT_LADDER,
    MAX_DELAY,
    MAX_PATH_LENGTH,
    MAX_RETRY,
    MAX_STEPS,
    MAX_TTR,
    MAX_URL_LENGTH,
)
from delayed_queue.http.jobs.kinds import MAX_TOPIC_LENGTH, TOPIC_PATTERN
from delayed_queue.messages import MAX_GROUP_LENGTH, MAX_KEY_LENGTH

_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "description": "Problem details of RFC 9457.",
    "required": ["type", "title", "status", "code"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "For programs; it never changes."},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["path", "message"],
                "properties": {
                    "in": {"type": "string", "enum": ["body", "query", "path", "header", "cookie"]},
                    "path": {"type": "string", "examples": ["delay", "items[3].url"]},
                    "message": {"type": "string"},
                },
            },
        },
    },
}
_TEXTS: Final = {
    "400": "The request is malformed or a field is invalid; errors names the fields.",
    "401": "No token, or one that is unknown, expired or revoked.",
    "403": "The token does not cover this call or this topic, or the topic is not served.",
    "413": "The body is too large.",
    "415": "The body is of another media type than the call takes.",
    "429": "The token's rate is used up; Retry-After says for how long.",
    "500": "An error of the server; it has been logged.",
    "503": "The server cannot do this now: code says why, Retry-After when to try again.",
}
_LIMITS: Final = ("maximum", "maxItems")
_WITH_RETRY: Final = frozenset({"429", "503"})


def described(schema: dict[str, Any], api: Any) -> dict[str, Any]:
    """Return the schema with a Problem for each answer that is an error."""
    schema["components"].setdefault("schemas", {})["Problem"] = _PROBLEM
    for methods in schema["paths"].values():
        for method, operation in methods.items():
            methods[method] = _completed(method, operation)
    return schema


def _completed(method: str, operation: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = _limited(operation)
    responses = {str(status): each for status, each in made["responses"].items()}
    for status in _statuses(method, made):
        responses.setdefault(status, {"description": _TEXTS[status]})
    for status, response in responses.items():
        if int(status) >= 400:
            _make_problem(status, response)
    made["responses"] = dict(sorted(responses.items()))
    return made


def _limited(value: Any) -> Any:
    """Return a copy in which a limit that is named, as "API.POP_COUNT", is that of the setting."""
    if isinstance(value, list):
        return [_limited(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _setting(each) if name in _LIMITS and isinstance(each, str) else _limited(each)
        for name, each in value.items()
    }


def _setting(name: str) -> float:
    part, _, key = name.partition(".")
    found = getattr(section(part), key)
    limit: float = found.total_seconds() if isinstance(found, timedelta) else found
    return limit


def _statuses(method: str, operation: dict[str, Any]) -> list[str]:
    """Return which errors the frame may answer to an operation."""
    found = ["400", "500", "503"]
    if method != "get":
        found += ["413"]
    if "requestBody" in operation:
        found += ["415"]
    if "security" in operation:
        found += ["401", "403", "429"]
    return found


def _make_problem(status: str, response: dict[str, Any]) -> None:
    schema = {"$ref": "#/components/schemas/Problem"}
    response["content"] = {MEDIA_TYPE: {"schema": schema}}
    if status in _WITH_RETRY:
        response["headers"] = {
            "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
        }


IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_DURATION: Final = r"[0-9]{1,4}(\.[0-9]{1,3})?(ms|s|m|h|d)"
_STEPS: Final = [
    {"type": "string", "pattern": f"^{_DURATION}$", "examples": ["15s", "3m"]},
    {"type": "integer", "minimum": 0, "maximum": 10**9, "description": "Seconds."},
]
_PRINTABLE: Final = r"^[^\x00-\x1f\x7f-\x9f]+$"
# Which hosts, addresses and ports are called is the guard's to say.
URL_PATTERN: Final = (
    r"^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@%\\ \x00-\x1f\x7f]+"
    r"([/?]([^#%\\ \x00-\x1f\x7f]|%[0-9A-Fa-f]{2})*)?$"
)
_NOT_BOTH: Final[dict[str, Any]] = {
    "required": ["delay", "runAt"],
    "properties": {"delay": {"type": "number"}, "runAt": {"type": "string"}},
}

JOB: Final[dict[str, Any]] = {
    "type": "object",
    "title": "NewJob",
    "required": ["jobId", "topic"],
    "not": _NOT_BOTH,
    "additionalProperties": False,
    "properties": {
        "jobId": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_KEY_LENGTH,
            "pattern": r"^[^/\x00-\x1f\x7f-\x9f]+$",
            "not": {"enum": [".", ".."]},
            "description": "The caller's name for the job, unique in its topic.",
        },
        "topic": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_TOPIC_LENGTH,
            "pattern": f"^{TOPIC_PATTERN}$",
        },
        "delay": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": MAX_DELAY.total_seconds(),
            "description": "Seconds from now, by the database's clock. Absent is 0.",
        },
        "runAt": {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "Instead of delay: an instant with its zone, at most 10 years ahead.",
        },
        "body": {"description": "Any JSON; it is delivered in canonical form."},
        "retry": {
            "type": ["integer", "null"],
            "minimum": 0,
            "maximum": MAX_RETRY,
            "description": "Failures so far: where on the ladder the job begins.",
        },
        "url": {
            "type": ["string", "null"],
            "pattern": URL_PATTERN,
            "maxLength": MAX_URL_LENGTH,
            "examples": ["https://example.org/hooks"],
            "description": "What is called when the job is due. Without it the job is popped.",
        },
        "ttr": {
            "type": ["number", "null"],
            "minimum": 1,
            "maximum": MAX_TTR.total_seconds(),
            "description": "Seconds that a consumer may hold the job.",
        },
        "ladder": {
            "description": f"The wait after each failure; else the topic's, or {DEFAULT_LADDER}.",
            "anyOf": [
                {"type": "string", "pattern": f"^{_DURATION}( {_DURATION}){{0,{MAX_STEPS - 1}}}$"},
                {"type": "array", "items": {"anyOf": _STEPS}, "minItems": 1, "maxItems": MAX_STEPS},
                {"type": "null"},
            ],
        },
        "jitter": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": 1,
            "description": "0.2 spreads each wait over ± 20 %.",
        },
        "group": {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": MAX_GROUP_LENGTH,
            "pattern": _PRINTABLE,
            "description": "Whose limits, of those that the topic has, the job is held to.",
        },
    },
}  # fmt: skip

ADDING: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": JOB}}},
    "parameters": [
        {
            "in": "header",
            "name": IDEMPOTENCY_KEY,
            "required": False,
            "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY,
                       "pattern": "^[ -+\\--~]+$"},
            "description": "The same request with the same key is answered as the first one was.",
        }
    ],
}  # fmt: skip

TASK: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["task"],
    "not": _NOT_BOTH,
    "additionalProperties": False,
    "properties": {
        "task": {
            "type": "string", "minLength": 1, "maxLength": MAX_PATH_LENGTH, "pattern": _PRINTABLE,
            "description": "The path of a task that is open to callers.",
        },
        "args": {"type": ["array", "null"], "description": "Its arguments."},
        "kwargs": {"type": ["object", "null"], "description": "Its named arguments."},
        **{name: JOB["properties"][name] for name in ("delay", "runAt")},
    },
}  # fmt: skip

ENQUEUING: Final = ADDING | {
    "requestBody": {"required": True, "content": {"application/json": {"schema": TASK}}}
}

BULK: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "array", "items": JOB, "maxItems": "API.BULK_ITEMS"}
            },
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}


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

    # It names limits of the settings, which a test may change.
    setting_changed.connect(lambda **_: text.cache_clear(), weak=False)

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
