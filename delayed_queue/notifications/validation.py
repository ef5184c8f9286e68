"""Validation of requests from REST, the broker and imports.

It raises nothing, and its messages never repeat a recipient, a context or a text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final
from zoneinfo import ZoneInfo

from msgspec import Struct, convert

from delayed_queue.cron.rules import load_zone
from delayed_queue.db.clock import database_now
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.reading import MAX_GUESSES, Errors, read
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.hours import Quiet, next_local
from delayed_queue.notifications.mail import problems_with
from delayed_queue.notifications.models import Channel, Priority
from delayed_queue.notifications.recipients import hash_of, normal, problem_with, problem_with_url
from delayed_queue.notifications.rendering import Compiled, MissingVariable, NotRenderable, Rendered
from delayed_queue.notifications.requests import MAX_SUBJECT, Attachment, Mail, NotificationRequest
from delayed_queue.notifications.segments import segments_of
from delayed_queue.notifications.services import USING

MAX_DEPTH: Final = 16
# Python refuses to write numbers of thousands of digits.
MAX_BITS: Final = 256
MAX_TEXT: Final = 100_000
MAX_ERRORS: Final = 20
MAX_AHEAD: Final = timedelta(days=366)
_BLANK: Final = frozenset(
    ("subject", "html", "priority", "sendAt", "expiresAt", "callbackUrl", "replyTo")
)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PATH: Final = re.compile(r"[A-Za-z0-9_.\[\]-]{1,100}")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_INSTANT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


# Where a member is: its container's place, and its name or number there.
Place = tuple[Any, ...]


class FieldError(Struct, frozen=True):
    """An error in one field; the path is as in ``items[2].to``."""

    path: str
    message: str


class Request(Struct, frozen=True):
    """A valid request, rendered; ``send_at`` None is at once."""

    channel: str
    recipient: str
    recipient_hash: bytes
    priority: str
    category: str
    is_transactional: bool
    subject: str
    body: str
    html: str
    template: str
    template_version: int | None
    send_at: datetime | None
    expires_at: datetime | None
    quiet: str
    dedupe_key: str
    callback_url: str
    mail: Mail | None = None

    def __repr__(self) -> str:
        # Without the recipient and texts, because logs and tracebacks contain it.
        return f"<Request {self.channel}>"


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
    if errors := list(islice(_unstorable(raw), MAX_ERRORS + 1)):
        return _first(errors)
    reader = _Reader(raw, find_template, now or database_now(USING), guesses)
    request = reader.request()
    return request if request is not None else _first(reader.errors)


def _first(errors: list[FieldError]) -> list[FieldError]:
    if len(errors) <= MAX_ERRORS:
        return errors
    return [*errors[:MAX_ERRORS], FieldError("", f"has more than {MAX_ERRORS} errors")]


def _unstorable(value: Any, place: Place = (), depth: int = 1) -> Iterator[FieldError]:
    """Yield errors for what neither JSON nor the database can hold.

    There may be very many members, so a path is written only for an error.
    """
    is_object = isinstance(value, dict)
    for name, each in value.items() if is_object else enumerate(value):
        message = (_scalar_problem(name) if is_object else "") or _scalar_problem(each)
        if type(each) in (dict, list) and each and not message:
            if depth < MAX_DEPTH:
                yield from _unstorable(each, (place, name), depth + 1)
                continue
            message = f"is nested deeper than {MAX_DEPTH} levels"
        if message:
            yield FieldError(_path((place, name)), message)


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


class _Reader:
    """Reads one object, and collects the errors of types, then those of other rules."""

    def __init__(
        self, raw: Mapping[str, Any], find_template: FindTemplate, now: datetime, guesses: int
    ) -> None:
        # Producers send an empty text for none.
        given = {name: each for name, each in raw.items() if each != "" or name not in _BLANK}
        found: Errors = []
        read(NotificationRequest, given, found, guesses=guesses)
        self.errors = [FieldError(_shown(path), message) for path, message in found]
        wrong = {re.split(r"[.\[]", path)[0] for path, _ in found}
        self._given = {name: each for name, each in given.items() if name not in wrong}
        self._find_template = find_template
        self._now = now

    def request(self) -> Request | None:
        """Return the request, or None when there are errors."""
        channel, recipient = self._get("channel"), self._recipient()
        priority = self._get("priority") or Priority.NORMAL.value
        is_urgent = priority == Priority.URGENT
        send_at, expires_at = self._times()
        quiet = self._quiet()
        if quiet and not is_urgent:
            # A time in the quiet hours becomes their end.
            send_at = quiet.until(send_at or self._now) or send_at
        callback_url = self._get("callbackUrl")
        if callback_url and (problem := problem_with_url(callback_url)):
            self._refuse("callbackUrl", problem)
        template, rendered = self._content(channel) if channel else (None, None)
        is_transactional = is_urgent or bool(template and template.is_transactional)
        category = self._category(channel, template, is_transactional=is_transactional)
        mail = self._mail(channel)
        if self.errors or rendered is None:
            return None
        return Request(
            channel, recipient, hash_of(channel, recipient), priority, category,
            is_transactional, rendered.subject, rendered.body, rendered.html,
            template.name if template else "", template.version if template else None,
            send_at, expires_at, str(quiet) if quiet and not is_urgent else "",
            self._get("dedupeKey"), callback_url, mail,
        )  # fmt: skip

    def _get(self, name: str) -> Any:
        """Return the value of a field; an empty text if it is absent or wrong."""
        value = self._given.get(name)
        return "" if value is None else value

    def _recipient(self) -> str:
        channel, given = self._get("channel"), self._get("to")
        if not (channel and given):
            return ""
        if problem := problem_with(channel, given):
            self._refuse("to", problem)
            return ""
        return normal(channel, given)

    def _category(self, channel: str, template: Compiled | None, *, is_transactional: bool) -> str:
        found: str = self._get("category") or (template.category if template else "")
        is_bulk = channel == Channel.EMAIL and found and not is_transactional
        if is_bulk and not get_settings().PUBLIC_URL:
            self._refuse("category", "needs the setting PUBLIC_URL, for an unsubscribe link")
        return found

    def _mail(self, channel: str) -> Mail | None:
        names = ("cc", "replyTo", "headers", "attachments")
        if channel != Channel.EMAIL:
            self._not_for("is only allowed with the channel email", *names)
            return None
        cc, reply_to, headers, attachments = (self._get(each) for each in names)
        mail = Mail(
            cc or (), reply_to, headers or {}, convert(attachments or (), tuple[Attachment, ...])
        )
        found = [FieldError(path, problem) for path, problem in problems_with(mail) if problem]
        self.errors += found
        return None if found or mail == Mail() else mail.normalized()

    def _refuse(self, path: str, message: str) -> None:
        self.errors.append(FieldError(path, message))

    def _quiet(self) -> Quiet | None:
        """Return the quiet hours, in the zone of the request or of its ``sendAt``."""
        name, hours, send_at = self._get("zone"), self._get("quiet"), self._get("sendAt")
        zone = self._zone("zone", name) if name else None
        if not name and isinstance(send_at, dict):
            zone = self._zone("sendAt.zone", send_at["zone"])
        elif not name and hours:
            self._refuse("zone", "is needed by quiet")
        if hours and hours[0] == hours[1]:
            self._refuse("quiet", "must end at another time than it starts")
        elif hours and zone:
            return Quiet(hours[0], hours[1], zone.key)
        return None

    def _zone(self, path: str, name: str) -> ZoneInfo | None:
        try:
            return load_zone(name)
        except InvalidConfiguration:
            if not any(each.path == path for each in self.errors):
                self._refuse(path, "is not a time zone such as Asia/Kolkata")
        return None

    def _times(self) -> tuple[datetime | None, datetime | None]:
        send_at, expires_at = self._instant("sendAt"), self._instant("expiresAt")
        if expires_at is not None and expires_at <= self._now:
            self._refuse("expiresAt", "is in the past")
        elif expires_at is not None and send_at is not None and expires_at <= send_at:
            self._refuse("expiresAt", "must be later than sendAt")
        return send_at, expires_at

    def _instant(self, name: str) -> datetime | None:
        text = self._get(name)
        if not text:
            return None
        if isinstance(text, dict):
            zone = self._zone("sendAt.zone", text["zone"])
            return next_local(text["local"], zone, self._now) if zone else None
        try:
            at = datetime.fromisoformat(text.upper()) if _INSTANT.fullmatch(text) else None
            at = at and at.astimezone(UTC)
        except (ValueError, OverflowError):
            at = None
        if at is None:
            self._refuse(name, "must be a time with zone such as 2031-05-01T12:00:00Z")
        elif at - self._now > MAX_AHEAD:
            self._refuse(name, f"is more than {MAX_AHEAD.days} days ahead")
        return at

    def _content(self, channel: str) -> tuple[Compiled | None, Rendered | None]:
        """Return the template, if one is named, and the texts; None if there are none."""
        if "template" not in self._given or self._given["template"] is None:
            self._not_for("is only allowed with a template", "context", "templateVersion")
            return None, self._checked(channel, self._written(channel))
        self._not_for("is not allowed with a template", "subject", "body", "html")
        name, version = self._given["template"], self._given.get("templateVersion")
        template = self._find_template(channel, name, None if version is None else int(version))
        if template is None:
            self._refuse("template", f"is not a template for {channel}, or has no such version")
            return None, None
        return template, self._rendered(channel, template)

    def _not_for(self, message: str, *names: str) -> None:
        for name in names:
            if self._given.get(name) is not None:
                self._refuse(name, message)

    def _rendered(self, channel: str, template: Compiled) -> Rendered | None:
        try:
            return self._checked(channel, template.render(self._get("context") or {}))
        except MissingVariable as error:
            self._refuse(f"context.{error.name}", "is needed by the template")
        except NotRenderable as error:
            self._refuse("context", str(error))
        return None

    def _written(self, channel: str) -> Rendered:
        """Return the texts of a request that has no template."""
        if channel != Channel.EMAIL:
            self._not_for(f"is not allowed with the channel {channel}", "subject", "html")
        if channel == Channel.WEBHOOK:
            if "body" not in self._given:
                self._refuse("body", "is required")
            body = self._given.get("body")
            return Rendered("", json.dumps(body, ensure_ascii=False, separators=(",", ":")), "")
        subject = self._text("subject") if channel == Channel.EMAIL else ""
        return Rendered(subject, self._text("body"), self._get("html"))

    def _text(self, name: str) -> str:
        value = self._get(name)
        if value == "" and not any(each.path == name for each in self.errors):
            self._refuse(name, "is required")
        if isinstance(value, str):
            return value
        self._refuse(name, "must be a string")
        return ""

    def _checked(self, channel: str, rendered: Rendered) -> Rendered:
        """Refuse texts that the channel cannot carry, from requests and templates."""
        if len(rendered.body) > MAX_TEXT:
            self._refuse("body", f"has more than {MAX_TEXT} characters")
        elif channel == Channel.SMS:
            segments, most = segments_of(rendered.body), get_settings().SMS_SEGMENTS
            if segments > most:
                self._refuse("body", f"has {segments} segments; an SMS has at most {most}")
        if not rendered.body.strip() and not self.errors:
            self._refuse("body", "is empty")
        if len(rendered.html) > MAX_TEXT:
            self._refuse("html", f"has more than {MAX_TEXT} characters")
        if _CONTROLS.search(rendered.subject):
            self._refuse("subject", "must be one line without control characters")
        if len(rendered.subject) > MAX_SUBJECT:
            self._refuse("subject", f"has more than {MAX_SUBJECT} characters")
        return rendered


def _shown(path: str) -> str:
    """Return the path of an error; an unknown field may have any name."""
    return path if _PATH.fullmatch(path) else "?"
