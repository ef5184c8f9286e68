"""The description of an API as a file."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponse

from delayed_queue.conf import section
from delayed_queue.http.api.bodies import MEDIA_TYPE, Problem
from delayed_queue.http.conf import MAX_KEY
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
        "code": {"type": "string", "description": "A stable code for programs."},
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
    "401": "The token is missing, unknown, expired or revoked.",
    "403": "The token does not allow this call or topic, or the topic is not served.",
    "413": "The body is too large.",
    "415": "The call does not accept this media type.",
    "429": "The token's rate is exceeded. Retry after the time in Retry-After.",
    "500": "The server failed and logged the error.",
    "503": "The server cannot do this now. code has the reason, Retry-After the time to wait.",
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
            "description": "Seconds from now, by the database's clock. Default: 0.",
        },
        "runAt": {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "Instead of delay: a time with its zone, at most 10 years ahead.",
        },
        "body": {"description": "Any JSON; it is delivered in canonical form."},
        "retry": {
            "type": ["integer", "null"],
            "minimum": 0,
            "maximum": MAX_RETRY,
            "description": "Number of failures so far: the step of the ladder to start at.",
        },
        "url": {
            "type": ["string", "null"],
            "pattern": URL_PATTERN,
            "maxLength": MAX_URL_LENGTH,
            "examples": ["https://example.org/hooks"],
            "description":
                "The URL to call when the job is due. Without it, consumers pop the "
                "job.",
        },
        "ttr": {
            "type": ["number", "null"],
            "minimum": 1,
            "maximum": MAX_TTR.total_seconds(),
            "description": "Seconds that a consumer may hold the job.",
        },
        "ladder": {
            "description":
                "The delay after each failure. Default: the topic's ladder, or "
                f"{DEFAULT_LADDER}.",
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
            "description": "Spreads each delay: 0.2 means ± 20 %.",
        },
        "group": {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": MAX_GROUP_LENGTH,
            "pattern": _PRINTABLE,
            "description": "The group whose limits apply to the job, if the topic has limits.",
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
            "description": "A repeated request with the same key gets the first answer.",
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
            "description": "The path of a task with http=True.",
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


View = Any


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
