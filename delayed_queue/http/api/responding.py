"""The one place that makes problems of exceptions, and answers with them."""

from __future__ import annotations

import logging
import traceback
from http import HTTPStatus
from typing import Any, Final

from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import connections
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from ninja.errors import AuthenticationError, HttpError

from delayed_queue.db.resilience import is_unavailable, tend
from delayed_queue.exceptions import (
    InvalidJob,
    InvalidMessage,
    OutcomeUnknown,
    UrlRefused,
)
from delayed_queue.http.api.bodies import Problem, unauthorized, unavailable
from delayed_queue.http.api.threads import in_event_loop
from delayed_queue.observe.logs import quoted

logger = logging.getLogger("delayed_queue")

_UNKNOWN: Final = (
    "The call may or may not have taken effect. If it had an Idempotency-Key, send it again with "
    "the same key; otherwise read the job first."
)


def problem_of(error: BaseException) -> Problem | None:
    """Return the problem that an exception means; None when it is an error of the server."""
    if isinstance(error, Problem):
        return error
    # Ninja says "cannot parse" of anything that a parser raises.
    if isinstance(error, HttpError) and isinstance(error.__cause__, Problem):
        return error.__cause__
    if isinstance(error, OutcomeUnknown):
        return unavailable("outcome_unknown", _UNKNOWN)
    if is_unavailable(error):
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
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not in_event_loop():
        # What the next request, or probe, would fail on as well.
        for each in connections.all(initialized_only=True):
            tend(each)
    return problem.as_response()


def _log(request: HttpRequest, error: BaseException) -> None:
    # Where it happened, without the exception's text: it may quote what the caller sent.
    match = request.resolver_match
    logger.error(
        "event=api_request_failed method=%s route=%s error=%s\n%s",
        quoted(request.method or ""),
        quoted(match.route if match else "?"),
        type(error).__name__,
        "".join(traceback.format_tb(error.__traceback__)),
    )
