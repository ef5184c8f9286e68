"""Bodies of requests: bounded, of a known type, and read as strict JSON; JSON of replies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sized
from datetime import datetime
from decimal import Decimal
from itertools import islice
from math import isfinite
from sys import float_info
from typing import Any, Final, TypeVar

from django.http import HttpRequest, HttpResponse
from msgspec import to_builtins
from msgspec.json import Decoder

from delayed_queue.http.api.problems import Problem
from delayed_queue.http.conf import ApiSettings, api_settings

S = TypeVar("S", bound=Sized)
# Picks the setting that limits the bytes of a body.
Limit = Callable[[ApiSettings], int]

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
_METHODS_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
# Begins at the first character that is not blank, so that blanks are scanned once.
_LINES: Final = re.compile(rb"\S[^\n]*")
# A double holds this many digits of any number between these two.
_SURE_DIGITS, _SMALLEST, _LARGEST = 15, float_info.min, float_info.max
_CONTAINERS: Final = frozenset({dict, list})


def parse(raw: bytes, depth: int, *, most: int | None = None) -> Any:
    """Return the value of a JSON text, or raise Problem 400 for anything doubtful.

    Refused are NaN and infinities (1e400 too), numbers of which a double loses digits, lone
    surrogates, NUL, a byte order mark, nesting deeper than ``depth``, and an object that has a name
    twice, which two readers may read differently. More than ``most`` items are Problem 413.
    """
    try:
        value = _DECODER.decode(raw)
    except (ValueError, RecursionError) as error:
        raise malformed(str(error)) from None
    if most is not None and isinstance(value, list):
        check_count(value, most)
    names = _checked(value, depth, has_nul=b"\\u0000" in raw)
    # A member of an object has exactly one colon outside strings. With more colons than names, a
    # name came twice, and the decoder has kept the last.
    if names != raw.count(b":") and names != _STRINGS.sub(b"", raw).count(b":"):
        raise malformed("an object has the same name twice")
    return value


def _exact(number: str) -> float:
    double = float(number)
    is_sure = len(number) <= _SURE_DIGITS and _SMALLEST <= abs(double) <= _LARGEST
    if not is_sure and not keeps_digits(number):
        raise malformed("a number has more digits than a double holds")
    return double


_DECODER: Final = Decoder(float_hook=_exact)


def keeps_digits(number: str) -> bool:
    """Return whether a JSON number is the same after it was read as a double and written."""
    double = float(number)
    if double == 0:  # Decimal refuses exponents of many digits
        return not set("123456789").intersection(number.lower().partition("e")[0])
    return isfinite(double) and Decimal(number) == Decimal(repr(double))


def _checked(value: Any, depth: int, *, has_nul: bool) -> int:
    """Return the number of names in the objects; raise for NUL and for values nested too deep.

    Goes level by level, because a loop cannot overflow a stack. Texts are read only if a NUL is
    written somewhere: the work for each value is the cost of a request of many small ones.
    """
    visited = _CONTAINERS | {str} if has_nul else _CONTAINERS
    names, level = 0, [value]
    for _ in range(depth + 1):
        members: list[Any] = []
        for each in level:
            if type(each) is dict:
                names += len(each)
                members += each.values()
                members += each if has_nul else ()
            elif type(each) is list:
                members += each
            elif has_nul and isinstance(each, str) and "\0" in each:
                raise malformed("a string contains NUL")
        if not members:
            return names
        level = [each for each in members if type(each) in visited]
    raise malformed(f"nested deeper than {depth} levels")


def malformed(reason: str) -> Problem:
    return Problem(400, "malformed_json", "Malformed JSON", reason)


def lines_of(raw: bytes, most: int) -> list[bytes]:
    """Return the lines that are not blank; of more than ``most`` raise Problem 413."""
    found = (each[0] for each in _LINES.finditer(raw))
    return check_count(list(islice(found, most + 1)), most)


def check_count(items: S, most: int) -> S:
    if len(items) > most:
        raise Problem(413, "too_many_items", detail=f"A bulk has at most {most} items here.")
    return items


def admit(request: HttpRequest, limit: Limit, types: Collection[str]) -> None:
    """Read the body, or raise Problem 413 or 415; 400 for JSON where the call takes no body.

    Reads one byte more than allowed, because Content-Length may be absent or wrong.
    """
    if request.method not in _METHODS_WITH_BODY:
        return
    most = limit(api_settings())
    if _announced(request) > most:
        raise too_large(most)
    body = request.read(most + 1)
    if len(body) > most:
        raise too_large(most)
    if body and types:
        _check_type(request, types)
    # Many clients send an empty object or null with each POST.
    elif request.content_type == JSON and body.strip() not in (b"", b"{}", b"null"):
        detail = "This call takes no body. Parameters, if it has any, are in the query."
        raise Problem(400, "invalid_request", "Invalid request", detail)
    # ``request.body`` keeps it here; after read() alone it would raise.
    request._body = body  # noqa: SLF001


def _announced(request: HttpRequest) -> int:
    text = request.META.get("CONTENT_LENGTH") or "0"
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def too_large(limit: int) -> Problem:
    return Problem(413, "body_too_large", detail=f"A body has at most {limit} bytes here.")


def _check_type(request: HttpRequest, types: Collection[str]) -> None:
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
        raise Problem(400, "invalid_request", "Invalid request", "Send a JSON object.")
    return value


def as_json(data: Any) -> str:
    """Return JSON; of strings that are not valid Unicode it keeps the escapes."""
    return _ENCODER.encode(to_builtins(data, builtin_types=(datetime,)))


def written(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_ENCODER: Final = json.JSONEncoder(default=written, separators=(",", ":"))


def reply(status: int, data: Any, **headers: str) -> HttpResponse:
    return HttpResponse(as_json(data), status=status, content_type=JSON, headers=headers)


def nothing() -> HttpResponse:
    response = HttpResponse(status=204)
    del response.headers["Content-Type"]
    return response
