"""The OpenAPI description, completed by what the frame answers to every operation."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

from delayed_queue.http.api.problems import MEDIA_TYPE
from delayed_queue.http.jobs.idempotency import MAX_LENGTH
from delayed_queue.http.jobs.jobs import MAX_DELAY, MAX_URL_LENGTH
from delayed_queue.http.jobs.kinds import MAX_TOPIC_LENGTH, TOPIC_PATTERN
from delayed_queue.http.jobs.ladders import DEFAULT_LADDER, MAX_RETRY, MAX_STEPS, MAX_TTR
from delayed_queue.messages import MAX_KEY_LENGTH

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
    "503": "The database is away; Retry-After says when to try again.",
}
_WITH_RETRY: Final = frozenset({"429", "503"})


def described(schema: dict[str, Any], api: Any) -> dict[str, Any]:
    """Return the schema with a Problem for each answer that is an error."""
    schema["components"].setdefault("schemas", {})["Problem"] = _PROBLEM
    for methods in schema["paths"].values():
        for method, operation in methods.items():
            methods[method] = _completed(method, operation)
    return schema


def _completed(method: str, operation: dict[str, Any]) -> dict[str, Any]:
    made = deepcopy(operation)
    responses = {str(status): each for status, each in made["responses"].items()}
    for status in _statuses(method, made):
        responses.setdefault(status, {"description": _TEXTS[status]})
    for status, response in responses.items():
        if int(status) >= 400:
            _make_problem(status, response)
    made["responses"] = dict(sorted(responses.items()))
    return made


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
_DURATION: Final = r"[0-9]{1,4}(ms|s|m|h)"
_STEP: Final = {"type": "string", "pattern": f"^{_DURATION}$", "examples": ["15s", "3m"]}

JOB: Final[dict[str, Any]] = {
    "type": "object",
    "title": "NewJob",
    "required": ["jobId", "topic"],
    "additionalProperties": False,
    "properties": {
        "jobId": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_KEY_LENGTH,
            "pattern": r"^[^/\x00-\x1f\x7f-\x9f]+$",
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
            "format": "uri",
            "maxLength": MAX_URL_LENGTH,
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
                {"type": "string", "pattern": f"^{_DURATION}( {_DURATION}){{0,9}}$"},
                {"type": "array", "items": _STEP, "minItems": 1, "maxItems": MAX_STEPS},
                {"type": "null"},
            ],
        },
        "jitter": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": 1,
            "description": "0.2 spreads each wait over ± 20 %.",
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
            "schema": {"type": "string", "minLength": 1, "maxLength": MAX_LENGTH,
                       "pattern": "^[ -~]+$"},
            "description": "The same request with the same key is answered as the first one was.",
        }
    ],
}  # fmt: skip

BULK: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "array", "items": JOB}},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}
