"""Bodies: how large, of which type, and JSON as the API takes it, strictly, and gives it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from http import HTTPStatus
from itertools import islice
from math import ceil, isfinite
from sys import float_info
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.http import HttpRequest, HttpResponse
from pydantic_core import from_json

from delayed_queue.exceptions import CallbacksOff
from delayed_queue.http.conf import ApiSettings, api_settings

if TYPE_CHECKING:
    from ninja.operation import Operation


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


def callbacks_off(error: CallbacksOff) -> Problem:
    """Return the problem of a job with a url while workers send no callbacks."""
    return unavailable("callbacks_off", str(error))


S = TypeVar("S", bound=Sized)

_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
# A number that is read as a double, without its sign; the length up to which such a one keeps its
# digits; and what looks like one that may not, in a string too. A run of digits is scanned once:
# it may be as long as a body.
_FRACTION: Final = re.compile(
    rb"(?<![0-9])[0-9]++(?:\.[0-9]++(?:[eE][+-]?[0-9]++)?|[eE][+-]?[0-9]++)"
)
_SURE_DIGITS: Final = 15
_LONG_NUMBER: Final = re.compile(rb"[\s:,\[]-?(?:[0-9.]{16}|[0-9]++\.?[0-9]*+[eE])")
# From the first sign that is not blank: what comes before it is not looked at twice.
_LINES: Final = re.compile(rb"\S[^\n]*")


def parse(raw: bytes, depth: int, *, most: int | None = None) -> Any:
    """Return the value of a JSON text; raises Problem 400 for anything doubtful.

    Refused are NaN and infinities (1e400 too), numbers of which a double loses digits, lone
    surrogates, NUL, a byte order mark, deeper nesting than ``depth``, and an object that has a
    name twice: two readers of it may differ.
    An array of more than ``most`` items is Problem 413.
    """
    try:
        # In C, and with a limit of its own on nesting; lone surrogates are errors to it.
        value = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise malformed(_reason(error)) from None
    if most is not None and isinstance(value, list):
        check_count(value, most)
    kinds = _WITH_TEXTS if b"\\u0000" in raw else _LOOKED_AT
    names, has_double = _checked(value, depth, kinds)
    # A member of a JSON object has exactly one colon outside strings. Fewer names than colons:
    # one of them came twice, and the parser has kept the last.
    if names != raw.count(b":") and names != _STRINGS.sub(b"", raw).count(b":"):
        raise malformed("an object has the same name twice")
    if has_double and _LONG_NUMBER.search(b" " + raw) is not None:
        _check_fractions(raw)
    return value


def _check_fractions(raw: bytes) -> None:
    for number in set(_FRACTION.findall(_STRINGS.sub(b"", raw))):
        if not keeps_digits(number.decode()):
            raise malformed("a number has more digits than a double holds")


def keeps_digits(number: str) -> bool:
    """Return whether a JSON number is the same after it was read as a double and written."""
    double = float(number)
    if len(number) <= _SURE_DIGITS and abs(double) >= float_info.min:
        return True
    if double == 0:  # Decimal refuses exponents of many digits
        return not set("123456789").intersection(number.lower().partition("e")[0])
    return Decimal(number) == Decimal(repr(double))


def lines_of(raw: bytes, most: int) -> list[bytes]:
    """Return the lines that are not blank; of more than ``most`` raises Problem 413."""
    found = (each[0] for each in _LINES.finditer(raw))
    return check_count(list(islice(found, most + 1)), most)


def check_count(items: S, most: int) -> S:
    if len(items) > most:
        raise Problem(413, "too_many_items", detail=f"A bulk has at most {most} items here.")
    return items


def malformed(reason: str) -> Problem:
    return Problem(400, "malformed_json", "Malformed JSON", reason)


def _reason(error: ValueError) -> str:
    return str(error)


# All else is right if it could be read. Texts too, unless a NUL is written somewhere.
_LOOKED_AT: Final = frozenset({dict, list, float})
_WITH_TEXTS: Final = _LOOKED_AT | {str}


def _checked(value: Any, depth: int, kinds: frozenset[type]) -> tuple[int, bool]:
    """Return the number of names in its objects, and whether a number was read as a double.

    Level by level: a loop cannot overflow a stack. Its work for each value is the cost of a
    request of many small ones.
    """
    names, has_double, level = 0, False, [value]
    for _ in range(depth + 1):
        members: list[Any] = []
        for each in level:
            kind = type(each)
            if kind is dict:
                names += len(each)
                members += each.values()
                if str in kinds:
                    members += each
            elif kind is list:
                members += each
            else:
                has_double = has_double or kind is float
                _check_alone(each)
        if not members:
            return names, has_double
        level = [each for each in members if type(each) in kinds]
    raise malformed(f"nested deeper than {depth} levels")


def _check_alone(value: Any) -> None:
    """Refuse a text or number that the reader took, and nobody can store."""
    if isinstance(value, float) and not isfinite(value):
        raise malformed("a number is too large")
    if isinstance(value, str) and "\0" in value:
        raise malformed("a string contains NUL")


F = TypeVar("F", bound=Callable[..., Any])

JSON: Final = "application/json"
_RULE: Final = "delayed_queue_body"
_METHODS_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class BodyRule:
    """The bodies that an operation takes."""

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
    return Problem(413, "body_too_large", detail=f"A body has at most {limit} bytes here.")


def _check_type(request: HttpRequest, types: tuple[str, ...]) -> None:
    charset = (request.content_params or {}).get("charset", "utf-8").lower()
    if request.content_type not in types or charset not in ("utf-8", "utf8"):
        raise Problem(
            415, "unsupported_media_type", detail=f"Send {' or '.join(types)} in UTF-8.",
            headers={"Accept": ", ".join(types)},
        )  # fmt: skip


def read_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a body, or raise Problem 400."""
    return check_object(parse(raw, api_settings().DEPTH))


def check_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Problem(400, "invalid_request", "Invalid request", "A job is a JSON object.")
    return value


def as_json(data: Any) -> str:
    """Return JSON; of strings that are no Unicode it keeps the escapes."""
    return _ENCODER.encode(data)


def written(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_ENCODER: Final = json.JSONEncoder(default=written, separators=(",", ":"))
