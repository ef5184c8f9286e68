"""Read the fields of a request into a struct, and report every error with its path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from re import search
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Meta, Struct, ValidationError, convert, json
from msgspec.structs import FieldInfo, fields

from delayed_queue.exceptions import did_you_mean

S = TypeVar("S", bound=Struct)
# Pairs of path and message.
Errors = list[tuple[str, str]]

# At most this many unknown names are reported, one more than a problem lists.
MAX_UNKNOWN: Final = 21
# At most this many unknown names get a guess: comparing one with the known names is slow.
MAX_GUESSES: Final = 3
_MAX_NAME: Final = 100
# As msgspec begins its message, which quotes the value.
_NOT_A_CHOICE: Final = "Invalid enum value"
# Surrogates have no place in UTF-8; only Python can hold them.
SURROGATES: Final = r"\ud800-\udfff"
CONTROLS: Final = rf"\x00-\x1f\x7f-\x9f{SURROGATES}"


class Custom(NamedTuple):
    """How a type that msgspec does not know is read, and how it is described."""

    check: Callable[[Any], Any]
    schema: dict[str, Any]


CUSTOM: Final[dict[type, Custom]] = {}
# The message for a text that does not match, by the message of msgspec.
_REASONS: Final[dict[str, str]] = {}


def matching(pattern: str, reason: str, most: int, text: str = "", *, least: int = 1) -> Meta:
    """Limit a text to a pattern and a length; ``reason`` is the message when it does not match.

    A pattern ends with ``\\Z``: in Python ``$`` matches before a final line feed too.
    """
    _REASONS[f"Expected `str` matching regex {pattern!r}"] = reason
    return Meta(pattern=pattern, min_length=least, max_length=most, description=text or None)


def printable(most: int, text: str = "") -> Meta:
    """Limit a text to a length, without control characters."""
    reason = "Control characters are not allowed."
    return matching(rf"^[^{CONTROLS}]*\Z", reason, most, text)


def between(least: float, most: float, text: str = "") -> Meta:
    """Limit a number to a range."""
    return Meta(ge=least, le=most, description=text or None)


def describe_custom(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a custom type."""
    return CUSTOM[kind].schema if kind in CUSTOM else {"enum": list(kind.values)}


def read(
    kind: type[S],
    given: Mapping[str, Any],
    errors: Errors,
    *,
    noun: str = "field",
    strict: bool = True,
    guesses: int = MAX_GUESSES,
) -> S | None:
    """Return the struct of the given fields, or None after adding an error for each wrong one.

    Without ``strict`` texts are read as numbers, as in a query.
    """
    with suppress(ValidationError):
        return convert(given, kind, strict=strict, dec_hook=_read_custom)
    found = list(_unknown(given, [each.encode_name for each in fields(kind)], noun, guesses))
    values: dict[str, Any] = {}
    for field in fields(kind):
        try:
            values |= _read_field(field, given, strict)
        except ValidationError as error:
            found.append(_explain(kind, field, str(error)))
    errors += found
    return None if found else kind(**values)


def _convert(value: Any, kind: Any, strict: bool) -> Any:
    return convert(value, kind, strict=strict, dec_hook=_read_custom)


def _read_custom(kind: type, value: Any) -> Any:
    if kind in CUSTOM:
        return kind(CUSTOM[kind].check(value))
    try:
        return kind(value)  # one of Django's choices
    except ValueError:
        raise ValueError(_NOT_A_CHOICE) from None


def _read_field(field: FieldInfo, given: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    if field.encode_name not in given:
        if field.required:
            raise ValidationError("This is required.")
        return {}
    value = given[field.encode_name]
    try:
        return {field.name: _convert(value, field.type, strict)}
    except ValidationError:
        # 1.0 is an integer to JSON Schema, and none to msgspec.
        if isinstance(value, float) and value.is_integer():
            return {field.name: _convert(int(value), field.type, strict)}
        raise


def _unknown(
    given: Mapping[str, Any], known: list[str], noun: str, guesses: int
) -> Iterator[tuple[str, str]]:
    unknown = (name for name in given if name not in known)
    for number, name in enumerate(islice(unknown, MAX_UNKNOWN)):
        hint = did_you_mean(name, known) if number < guesses else ""
        yield name[:_MAX_NAME], f"There is no such {noun}.{hint}"


def _explain(kind: type[Struct], field: FieldInfo, text: str) -> tuple[str, str]:
    """Return the path and the message of an error, which quotes no value."""
    message, _, path = text.partition(" - at `$")
    if message.startswith(_NOT_A_CHOICE):
        message = f"Expected one of {_choices(kind, field.name)}."
    return field.encode_name + path.rstrip("`"), _REASONS.get(message, message)


@lru_cache
def _choices(kind: type[Struct], name: str) -> str:
    (found,) = (each.type for each in fields(kind) if each.name == name)
    text = json.encode(json.schema(found, schema_hook=describe_custom)).decode()
    choices = search(r'"enum":\[([^]]*)\]', text)
    return choices[1].replace(",", ", ") if choices else ""
