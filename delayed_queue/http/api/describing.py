"""The OpenAPI description, completed by the answers that the frame gives to every operation."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

from delayed_queue.http.api.problems import MEDIA_TYPE

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
