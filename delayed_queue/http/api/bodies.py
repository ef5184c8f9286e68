"""Request bodies: how large they may be, and of which type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from django.http import HttpRequest
from ninja.operation import Operation

from delayed_queue.http.api.problems import Problem
from delayed_queue.http.conf import ApiSettings, api_settings

F = TypeVar("F", bound=Callable[..., Any])

JSON: Final = "application/json"
_RULE: Final = "delayed_queue_body"
_METHODS_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class BodyRule:
    """Which bodies an operation takes."""

    limit: Callable[[ApiSettings], int]
    types: tuple[str, ...]


_PLAIN: Final = BodyRule(lambda settings: settings.BODY_BYTES, (JSON,))
# A call without a body may get one all the same; it is read, bounded, and ignored.
_UNASKED: Final = BodyRule(lambda settings: settings.BODY_BYTES, ())


def takes_body(limit: Callable[[ApiSettings], int], *types: str) -> Callable[[F], F]:
    """Have a view take bodies up to that setting, of those media types.

    For views that read ``request.body`` themselves, or want another limit::

        @router.post("/jobs/bulk")
        @takes_body(lambda settings: settings.BULK_BYTES, JSON, "application/x-ndjson")
        def add_many(request): ...
    """

    def mark(view: F) -> F:
        setattr(view, _RULE, BodyRule(limit, types))
        return view

    return mark


def rule_of(operation: Operation) -> BodyRule:
    """Return the rule of an operation: its own, or JSON where ninja parses a body for it."""
    own: BodyRule | None = getattr(operation.view_func, _RULE, None)
    if own is not None:
        return own
    sources = {model.__ninja_param_source__ for model in operation.models}
    return _PLAIN if "body" in sources else _UNASKED


def admit(request: HttpRequest, rule: BodyRule) -> None:
    """Read the body, or raise Problem 413 or 415.

    By reading one byte more than allowed: Content-Length may be absent or lie.
    """
    if request.method not in _METHODS_WITH_BODY:
        return
    limit = rule.limit(api_settings())
    if _announced(request) > limit:
        raise too_large(limit)
    body = request.read(limit + 1)
    if len(body) > limit:
        raise too_large(limit)
    if body and rule.types:
        _check_type(request, rule.types)
    # Where `request.body` keeps it; read() alone would have it raise.
    request._body = body  # noqa: SLF001


def _announced(request: HttpRequest) -> int:
    text = request.META.get("CONTENT_LENGTH") or "0"
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def too_large(limit: int) -> Problem:
    return Problem(413, "body_too_large", detail=f"A body may have {limit} bytes here.")


def _check_type(request: HttpRequest, types: tuple[str, ...]) -> None:
    charset = (request.content_params or {}).get("charset", "utf-8").lower()
    if request.content_type not in types or charset not in ("utf-8", "utf8"):
        raise Problem(
            415, "unsupported_media_type", detail=f"Send {' or '.join(types)} in UTF-8.",
            headers={"Accept": ", ".join(types)},
        )  # fmt: skip
