"""Errors as problems of RFC 9457, and the problem that each exception means."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from itertools import islice
from math import ceil
from typing import Annotated, Any, Final, Literal

from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import connections
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from msgspec import UNSET, Meta, Struct, UnsetType, field

from delayed_queue.db.resilience import is_unavailable, tend
from delayed_queue.exceptions import CallbacksOff, InvalidJob, InvalidMessage, OutcomeUnknown
from delayed_queue.http.api.clients import stop_reading
from delayed_queue.http.api.pool import in_event_loop
from delayed_queue.logs import log

MEDIA_TYPE: Final = "application/problem+json"
MAX_ERRORS: Final = 20
MAX_PATH: Final = 100
RETRY_AFTER: Final = timedelta(seconds=5)
Source = Literal["body", "query", "path", "header", "cookie"]


class Problem(Exception):
    """An error that is the answer: raise it anywhere below a view of the API.

    ``code`` is for programs and never changes. ``title`` is the same for every occurrence,
    ``detail`` describes this one. ``errors`` are dicts of ``in``, ``path`` and ``message``; at most
    20 are sent. None of them may contain a payload, a secret, or data of another caller.
    """

    def __init__(
        self,
        status: int,
        code: str,
        title: str = "",
        detail: str = "",
        errors: Iterable[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.title = title or HTTPStatus(status).phrase
        found = list(islice(errors, MAX_ERRORS + 1))
        self.errors: Sequence[Mapping[str, str]] = found[:MAX_ERRORS]
        more = f"There are more than {MAX_ERRORS} errors." if len(found) > MAX_ERRORS else ""
        self.detail = " ".join(filter(None, (detail, more)))
        self.headers = dict(headers or {})

    def as_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "type": "about:blank", "title": self.title, "status": self.status, "code": self.code,
        }  # fmt: skip
        if self.detail:
            body["detail"] = self.detail
        if self.errors:
            body["errors"] = self.errors
        return body

    def as_json(self) -> bytes:
        return json.dumps(self.as_dict()).encode()

    def as_response(self) -> HttpResponse:
        return HttpResponse(
            self.as_json(), status=self.status, content_type=MEDIA_TYPE, headers=self.headers
        )


class ProblemField(Struct):
    """An error in one field."""

    path: Annotated[str, Meta(examples=["delay", "items[3].url"])]
    message: str
    source: Source | UnsetType = field(name="in", default=UNSET)


class ProblemReply(Struct):
    """Problem details of RFC 9457."""

    type: Annotated[str, Meta(extra_json_schema={"format": "uri-reference"})]
    title: str
    status: int
    code: Annotated[str, Meta(description="A stable code for programs.")]
    detail: str | UnsetType = UNSET
    errors: list[ProblemField] | UnsetType = UNSET


def invalid(source: Source, errors: Iterable[tuple[str, str]]) -> Problem:
    """Return the problem of fields, given as pairs of path and message."""
    found = ({"in": source, "path": path[:MAX_PATH], "message": text} for path, text in errors)
    return Problem(400, "invalid_request", "Invalid request", errors=found)


def missing(what: str = "job") -> Problem:
    return Problem(404, "not_found", detail=f"There is no such {what}.")


def not_allowed(methods: Iterable[str]) -> Problem:
    return Problem(405, "method_not_allowed", headers={"Allow": ", ".join(methods)})


def unauthorized(detail: str = "") -> Problem:
    return Problem(
        401, "unauthorized", detail=detail or "Send the header Authorization: Bearer <token>.",
        headers={"WWW-Authenticate": 'Bearer realm="delayed_queue"'},
    )  # fmt: skip


def too_many_requests(wait: timedelta) -> Problem:
    return Problem(429, "too_many_requests", headers=_wait_header(wait))


def unavailable(code: str = "database_unavailable", detail: str = "") -> Problem:
    return Problem(503, code, detail=detail, headers=_wait_header(RETRY_AFTER))


def _wait_header(wait: timedelta) -> dict[str, str]:
    """Return a Retry-After header: whole seconds, at least one."""
    return {"Retry-After": str(max(1, ceil(wait.total_seconds())))}


_UNKNOWN: Final = (
    "The call may have taken effect. With an Idempotency-Key, send it again with "
    "the same key; otherwise read the job first."
)


def problem_of(error: BaseException) -> Problem | None:
    """Return the problem that an exception means; None for an error of the server."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, CallbacksOff):
        return unavailable("callbacks_off", str(error))
    if isinstance(error, OutcomeUnknown):
        return unavailable("outcome_unknown", _UNKNOWN)
    if is_unavailable(error):
        return unavailable()
    if isinstance(error, InvalidJob):
        return invalid("body", error.errors)
    if isinstance(error, InvalidMessage):
        return Problem(400, "invalid_request", "Invalid request", str(error))
    return _problem_of_django(error)


def _problem_of_django(error: BaseException) -> Problem | None:
    if isinstance(error, Http404):
        return Problem(404, "not_found")
    if isinstance(error, RequestDataTooBig):
        return Problem(413, "body_too_large")
    if isinstance(error, BadRequest | SuspiciousOperation | UnreadablePostError):
        return Problem(400, "bad_request")
    return None


def respond(request: HttpRequest, error: Exception) -> HttpResponse:
    """Return the response to an exception; errors of the server are logged and signalled."""
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
        # The next request, or probe, would fail on the same connections.
        for each in connections.all(initialized_only=True):
            tend(each)
    return problem.as_response()


def _log(request: HttpRequest, error: BaseException) -> None:
    match = request.resolver_match
    fields = {"method": request.method, "route": match.route if match else "?"}
    where = _TextLeftOut().with_traceback(error.__traceback__)
    log(logging.ERROR, "api_request_failed", where, **fields, error=type(error).__name__)


class _TextLeftOut(Exception):
    """Stands for an exception whose text may quote the request."""
