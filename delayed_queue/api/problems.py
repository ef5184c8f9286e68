"""Errors as RFC 9457 problem details, and the one place that makes them of exceptions."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from math import ceil
from typing import Any, Final

from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from ninja.errors import AuthenticationError, HttpError

from delayed_queue.exceptions import (
    InvalidJob,
    InvalidMessage,
    OutcomeUnknown,
    ResourceUnavailable,
    UrlRefused,
)

logger = logging.getLogger("delayed_queue")

MEDIA_TYPE: Final = "application/problem+json"
MAX_ERRORS: Final = 50
RETRY_AFTER: Final = timedelta(seconds=5)


class Problem(Exception):
    """An answer that is an error: raise it anywhere below a view of the API.

    ``code`` is for programs and never changes, ``title`` is the same for every occurrence,
    ``detail`` is about this one. ``errors`` are dicts of ``path``, ``message`` and, where it is
    not plain, ``in``: body, query, path or header. None of them may tell a payload, a secret, or
    anything of another caller's.
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
        self.detail = detail
        self.errors: Sequence[Mapping[str, str]] = list(errors)[:MAX_ERRORS]
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


def wait_header(wait: timedelta) -> dict[str, str]:
    """Return a Retry-After header: whole seconds, at least one."""
    return {"Retry-After": str(max(1, ceil(wait.total_seconds())))}


def unauthorized(detail: str = "") -> Problem:
    return Problem(
        401, "unauthorized", detail=detail or "Send the header Authorization: Bearer <token>.",
        headers={"WWW-Authenticate": 'Bearer realm="delayed_queue"'},
    )  # fmt: skip


def unavailable(code: str = "database_unavailable", detail: str = "") -> Problem:
    return Problem(503, code, detail=detail, headers=wait_header(RETRY_AFTER))


def problem_of(error: BaseException) -> Problem | None:
    """Return the problem that an exception means; None when it is an error of the server."""
    if isinstance(error, Problem):
        return error
    # Ninja says "cannot parse" of anything that a parser raises.
    if isinstance(error, HttpError) and isinstance(error.__cause__, Problem):
        return error.__cause__
    if isinstance(error, OutcomeUnknown):
        return unavailable("outcome_unknown", "The call may or may not have taken effect.")
    if isinstance(error, ResourceUnavailable | OperationalError | InterfaceError):
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
        logger.warning("event=api_unavailable code=%s error=%s", problem.code, type(error).__name__)
    return problem.as_response()


def _log(request: HttpRequest, error: BaseException) -> None:
    # Where it happened, without the exception's text: it may quote what the caller sent.
    match = request.resolver_match
    logger.error(
        "event=api_request_failed method=%s route=%s error=%s\n%s",
        request.method,
        match.route if match else "?",
        type(error).__name__,
        "".join(traceback.format_tb(error.__traceback__)),
    )
