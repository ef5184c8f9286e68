"""Errors as RFC 9457 problem details. Without Ninja: a broker's consumer has them, too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from itertools import islice
from math import ceil
from typing import Any, Final

from django.http import HttpResponse

MEDIA_TYPE: Final = "application/problem+json"
MAX_ERRORS: Final = 20
MAX_PATH: Final = 100
RETRY_AFTER: Final = timedelta(seconds=5)


class Problem(Exception):
    """An answer that is an error: raise it anywhere below a view of the API.

    ``code`` is for programs and never changes, ``title`` is the same for every occurrence,
    ``detail`` is about this one. ``errors`` are dicts of ``path``, ``message`` and, where it is
    not plain, ``in``: body, query, path or header; of more than 20 the detail says that there are
    more. None of them may tell a payload, a secret, or anything of another caller's.
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
        more = f"There are more errors than these {MAX_ERRORS}." if len(found) > MAX_ERRORS else ""
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
