"""From any JSON value to a request that can be stored, or to all that is wrong with it.

The one gate for REST, broker and imports. It raises nothing, and its messages never repeat a
recipient, a context or a text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from delayed_queue.db.clock import database_now
from delayed_queue.exceptions import suggest
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.models import Channel, Priority
from delayed_queue.notifications.recipients import problem_with, problem_with_url, recipient_hash
from delayed_queue.notifications.rendering import (
    Compiled,
    MissingVariable,
    NotRenderable,
    Rendered,
)
from delayed_queue.notifications.services import USING

MAX_DEPTH: Final = 16
# Python refuses to write numbers of thousands of digits.
MAX_BITS: Final = 256
MAX_SUBJECT: Final = 255
MAX_TEXT: Final = 100_000
# Ten parts of a long message.
MAX_SMS: Final = 1530
MAX_KEY: Final = 200
MAX_CATEGORY: Final = 50
MAX_ERRORS: Final = 20
MAX_GUESSES: Final = 3
# Asked of the class, each is made anew.
_CHANNELS: Final = list(Channel.values)
_PRIORITIES: Final = list(Priority.values)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_CATEGORY: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_INSTANT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


# Where a member is: its container's place, and its name or number there.
Place = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error in one field; the path is as in ``items[2].to``."""

    path: str
    message: str

    def as_dict(self) -> dict[str, str]:
        return {"path": self.path, "message": self.message}


@dataclass(frozen=True, slots=True)
class Request:
    """A valid request, rendered; ``send_at`` None is at once."""

    channel: str
    recipient: str = field(repr=False)
    recipient_hash: bytes = field(repr=False)
    priority: str
    category: str
    subject: str = field(repr=False)
    body: str = field(repr=False)
    html: str = field(repr=False)
    template: str = ""
    template_version: int | None = None
    send_at: datetime | None = None
    expires_at: datetime | None = None
    dedupe_key: str = ""
    callback_url: str = ""


# Finds a template by channel, name and version; None is the latest version.
FindTemplate = Callable[[str, str, int | None], Compiled | None]


def validate(
    raw: object,
    find_template: FindTemplate,
    now: datetime | None = None,
    *,
    guesses: int = MAX_GUESSES,
) -> Request | list[FieldError]:
    """Return the request, or at most 20 errors with paths, and one if there are more.

    The errors of the first ``guesses`` unknown fields suggest a name.
    """
    if not isinstance(raw, dict):
        return [FieldError("", "must be a JSON object")]
    if errors := _unstorable(raw):
        return _first(errors)
    reader = _Reader(raw, find_template, now or database_now(USING), guesses)
    request = reader.request()
    return request if request is not None else _first(reader.errors)


def _first(errors: list[FieldError]) -> list[FieldError]:
    if len(errors) <= MAX_ERRORS:
        return errors
    return [*errors[:MAX_ERRORS], FieldError("", f"has more than {MAX_ERRORS} errors")]


def _unstorable(raw: dict[Any, Any]) -> list[FieldError]:
    """Return errors for what neither JSON nor the database can hold, level by level."""
    errors: list[FieldError] = []
    level: list[tuple[Place, Any]] = [((), raw)]
    for _ in range(MAX_DEPTH):
        level = [found for place, each in level for found in _looked_at(place, each, errors)]
        if errors:
            return errors
    for place, each in level:
        for name in _names(each):
            path = _path((place, name))
            return [FieldError(path, f"is nested deeper than {MAX_DEPTH} levels")]
    return []


def _looked_at(place: Place, value: Any, errors: list[FieldError]) -> Iterator[tuple[Place, Any]]:
    """Yield the members that have members; what is wrong with the others goes to the errors.

    There may be very many, so their places are written out only where something is wrong.
    """
    for name in _names(value):
        each = value[name]
        if type(each) is dict or type(each) is list:
            if each:
                yield (place, name), each
        elif message := _scalar_problem(each):
            _note(errors, place, name, message)
        if type(name) is not int and (message := _scalar_problem(name)):
            _note(errors, place, name, message)


def _names(value: Any) -> Iterable[Any]:
    return value if isinstance(value, dict) else range(len(value))


def _note(errors: list[FieldError], place: Place, name: Any, message: str) -> None:
    if len(errors) <= MAX_ERRORS:
        errors.append(FieldError(_path((place, name)), message))


def _path(place: Place) -> str:
    parts: list[str] = []
    while place:
        place, name = place
        shown = name if isinstance(name, str) and _NAME.fullmatch(name) else "?"
        parts.append(f"[{name}]" if isinstance(name, int) else f".{shown}")
    return "".join(reversed(parts)).removeprefix(".")


def _scalar_problem(value: Any) -> str:
    if isinstance(value, str):
        if "\x00" in value:
            return "contains NUL"
        return "is not valid Unicode" if not value.isascii() and _SURROGATES.search(value) else ""
    if isinstance(value, int):
        return "is too large a number" if value.bit_length() > MAX_BITS else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else "is not a finite number"
    known = value is None or isinstance(value, dict | list)
    return "" if known else f"is a {type(value).__name__}, not a JSON value"


def check_category(category: str) -> str:
    """Return what is wrong with a category; empty when nothing is."""
    if len(category) > MAX_CATEGORY:
        return f"has more than {MAX_CATEGORY} characters"
    is_name = not category or _CATEGORY.fullmatch(category)
    return "" if is_name else "must consist of a-z, 0-9, '.', '_' and '-'"


class _Reader:
    """Reads one object, field by field, and collects what is wrong."""

    def __init__(
        self, raw: Mapping[str, Any], find_template: FindTemplate, now: datetime, guesses: int
    ) -> None:
        self.errors: list[FieldError] = []
        self._guesses = guesses
        self._raw = raw
        self._find_template = find_template
        self._now = now

    def request(self) -> Request | None:
        """Return the request, or None when there are errors."""
        self._check_names()
        channel = self._choice("channel", _CHANNELS, required=True)
        priority = self._choice("priority", _PRIORITIES) or Priority.NORMAL.value
        recipient = self._recipient(channel)
        category = self._category()
        send_at, expires_at = self._times()
        dedupe_key = self._line("dedupeKey", MAX_KEY)
        if self._raw.get("dedupeKey") == "":
            self._refuse("dedupeKey", "must not be empty")
        callback_url = self._text("callbackUrl")
        if callback_url and (problem := problem_with_url(callback_url)):
            self._refuse("callbackUrl", problem)
        template, rendered = self._content(channel)
        if self.errors or rendered is None:
            return None
        return Request(
            channel, recipient, recipient_hash(channel, recipient), priority,
            category or (template.category if template else ""),
            rendered.subject, rendered.body, rendered.html,
            template.name if template else "", template.version if template else None,
            send_at, expires_at, dedupe_key, callback_url,
        )  # fmt: skip

    def _refuse(self, path: str, message: str) -> None:
        self.errors.append(FieldError(path, message))

    def _check_names(self) -> None:
        for name in self._raw:
            if len(self.errors) > MAX_ERRORS:
                return
            if name not in FIELDS:
                close = suggest(name, FIELDS) if len(self.errors) < self._guesses else None
                hint = f"; did you mean {close}?" if close else ""
                shown = name if _NAME.fullmatch(str(name)) else "?"
                self._refuse(shown, f"is not a field of a notification{hint}")

    def _text(self, name: str, most: int = MAX_TEXT, *, required: bool = False) -> str:
        value = self._raw.get(name)
        if value is None or value == "":
            if required:
                self._refuse(name, "is required")
            return ""
        if not isinstance(value, str):
            self._refuse(name, "must be a string")
            return ""
        if len(value) > most:
            self._refuse(name, f"has more than {most} characters")
            return ""
        return value

    def _line(self, name: str, most: int) -> str:
        text = self._text(name, most)
        if _CONTROLS.search(text):
            self._refuse(name, "must be one line without control characters")
        return text

    def _choice(self, name: str, choices: list[str], *, required: bool = False) -> str:
        value = self._text(name, required=required)
        if value and value not in choices:
            self._refuse(name, f"must be one of {', '.join(choices)}")
            return ""
        return value

    def _recipient(self, channel: str) -> str:
        recipient = self._text("to", required=True)
        if recipient and channel and (problem := problem_with(channel, recipient)):
            self._refuse("to", problem)
        return recipient

    def _category(self) -> str:
        category = self._text("category")
        if problem := check_category(category):
            self._refuse("category", problem)
        return category

    def _times(self) -> tuple[datetime | None, datetime | None]:
        send_at, expires_at = self._instant("sendAt"), self._instant("expiresAt")
        if expires_at is not None and expires_at <= self._now:
            self._refuse("expiresAt", "is in the past")
        elif expires_at is not None and send_at is not None and expires_at <= send_at:
            self._refuse("expiresAt", "must be later than sendAt")
        return send_at, expires_at

    def _instant(self, name: str) -> datetime | None:
        text = self._text(name, 64)
        if not text:
            return None
        try:
            at = datetime.fromisoformat(text.upper()) if _INSTANT.fullmatch(text) else None
            at = at and at.astimezone(UTC)
        except (ValueError, OverflowError):
            at = None
        if at is None:
            self._refuse(name, "must be a time with zone such as 2031-05-01T12:00:00Z")
        elif at - self._now > get_settings().MAX_AHEAD:
            self._refuse(name, f"is more than {get_settings().MAX_AHEAD.days} days ahead")
        return at

    def _content(self, channel: str) -> tuple[Compiled | None, Rendered | None]:
        """Return the template, if it is one, and the texts; None when they cannot be had."""
        name = self._text("template")
        if name or self._raw.get("template") is not None:
            return self._from_template(channel, name)
        for each in ("context", "templateVersion"):
            if self._raw.get(each) is not None:
                self._refuse(each, "is only allowed with a template")
        return None, self._checked(channel, self._written(channel)) if channel else None

    def _from_template(self, channel: str, name: str) -> tuple[Compiled | None, Rendered | None]:
        for each in ("subject", "body", "html"):
            if self._raw.get(each) is not None:
                self._refuse(each, "is not allowed with a template")
        version, context = self._version(), self._context()
        if not channel or context is None or not name:
            return None, None
        is_name = bool(_NAME.fullmatch(name))
        template = self._find_template(channel, name, version) if is_name else None
        if template is None:
            self._refuse("template", f"is not a template for {channel}, or has no such version")
            return None, None
        return template, self._rendered(channel, template, context)

    def _version(self) -> int | None:
        version = self._raw.get("templateVersion")
        if version is None:
            return None
        if type(version) is not int or not 1 <= version < 2**31:
            self._refuse("templateVersion", "must be a whole number from 1")
            return None
        return version

    def _context(self) -> dict[str, Any] | None:
        context = self._raw.get("context")
        if context is None:
            return {}
        if not isinstance(context, dict):
            self._refuse("context", "must be a JSON object")
            return None
        return context

    def _rendered(
        self, channel: str, template: Compiled, context: dict[str, Any]
    ) -> Rendered | None:
        try:
            return self._checked(channel, template.render(context))
        except MissingVariable as error:
            self._refuse(f"context.{error.name}", "is needed by the template")
        except NotRenderable as error:
            self._refuse("context", str(error))
        return None

    def _written(self, channel: str) -> Rendered:
        """Return the texts of a request that has no template."""
        if channel == Channel.WEBHOOK:
            return Rendered("", self._json_body(), self._not_for(channel, "subject", "html"))
        if channel == Channel.SMS:
            self._not_for(channel, "subject", "html")
            return Rendered("", self._text("body", required=True), "")
        subject = self._text("subject", required=True)
        return Rendered(subject, self._text("body", required=True), self._text("html"))

    def _not_for(self, channel: str, *names: str) -> str:
        for name in names:
            if self._raw.get(name) is not None:
                self._refuse(name, f"is not allowed with the channel {channel}")
        return ""

    def _json_body(self) -> str:
        if "body" not in self._raw:
            self._refuse("body", "is required")
            return ""
        return json.dumps(self._raw["body"], ensure_ascii=False, separators=(",", ":"))

    def _checked(self, channel: str, rendered: Rendered) -> Rendered:
        """Refuse texts that the channel cannot carry, whoever wrote them."""
        most = MAX_SMS if channel == Channel.SMS else MAX_TEXT
        if len(rendered.body) > most:
            self._refuse("body", f"has more than {most} characters")
        if not rendered.body.strip() and not self.errors:
            self._refuse("body", "is empty")
        if _CONTROLS.search(rendered.subject):
            self._refuse("subject", "must be one line without control characters")
        if len(rendered.subject) > MAX_SUBJECT:
            self._refuse("subject", f"has more than {MAX_SUBJECT} characters")
        return rendered


FIELDS: Final = (
    "channel", "to", "template", "templateVersion", "context", "subject", "body", "html",
    "category", "priority", "sendAt", "expiresAt", "dedupeKey", "callbackUrl",
)  # fmt: skip
