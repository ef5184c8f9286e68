"""Copies, reply address, headers and attachments of mails: their checks, and their files."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from asgiref.sync import sync_to_async
from msgspec import json

from delayed_queue.conf import MIB
from delayed_queue.db.resilience import repeat
from delayed_queue.http.callbacks.calls import Failure
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.models import Channel, Suppression
from delayed_queue.notifications.recipients import hash_of, problem_with, problem_with_url
from delayed_queue.notifications.requests import Attachment, Mail
from delayed_queue.notifications.services import USING, Outgoing

# Bytes of the attachments of one mail that are fetched.
FETCHED_BYTES: Final = 10 * MIB
# A mail server breaks lines that are longer than 998 characters, with the name.
MAX_VALUE: Final = 900
# Statuses after which a second try may succeed.
_AGAIN: Final = frozenset((408, 425, 429))
Problems = Iterator[tuple[str, str]]


def problems_with(mail: Mail) -> Problems:
    """Yield what is wrong, each with the path of its field."""
    for index, each in enumerate(mail.cc):
        yield f"cc[{index}]", problem_with(Channel.EMAIL, each)
    if mail.reply_to:
        yield "replyTo", problem_with(Channel.EMAIL, mail.reply_to)
    yield from _problems_with_headers(mail.headers)
    yield from _problems_with_attachments(mail.attachments)


def _problems_with_headers(headers: Mapping[str, Any]) -> Problems:
    allowed = {each.lower() for each in get_settings().MAIL_HEADERS}
    for name, value in headers.items():
        path = f"headers.{name if name.lower() in allowed else '?'}"
        if name.lower() not in allowed:
            yield path, "is not in the setting MAIL_HEADERS, or is there twice"
        elif not (isinstance(value, str) and value.isascii() and value.isprintable()):
            yield path, "must be one line of printable ASCII"
        elif len(value) > MAX_VALUE:
            yield path, f"has more than {MAX_VALUE} characters"
        allowed.discard(name.lower())


def _problems_with_attachments(attachments: Sequence[Attachment]) -> Problems:
    most = get_settings().ATTACHMENT_BYTES
    for index, each in enumerate(attachments):
        if (each.content is None) == (each.url is None):
            yield f"attachments[{index}]", "needs either content or url"
        elif each.url is not None:
            yield f"attachments[{index}].url", problem_with_url(each.url, "fetched from")
    if sum(len(each.content or b"") for each in attachments) > most:
        yield "attachments", f"have more than {most} bytes in all; use url for large ones"


class NotFetched(Exception):
    """An attachment that could not be fetched. ``is_final``: no later attempt can succeed."""

    def __init__(self, number: int, code: str, *, is_final: bool = True) -> None:
        super().__init__(f"attachment {number} could not be fetched: {code}")
        self.code, self.is_final = code, is_final


async def extras_of(outgoing: Outgoing) -> Mail:
    """Return what to send: copies without suppressed addresses, and fetched attachments.

    Raises NotFetched.
    """
    mail = json.decode(outgoing.mail, type=Mail)
    cc = await sync_to_async(_allowed)(outgoing, mail.cc) if mail.cc else ()
    files, left = [], FETCHED_BYTES
    for number, each in enumerate(mail.attachments, 1):
        content = await _fetched(each.url, left, number) if each.url else each.content or b""
        left -= len(content) if each.url else 0
        kind = each.type or mimetypes.guess_type(each.name)[0] or "application/octet-stream"
        files.append(Attachment(each.name, kind, content))
    return Mail(cc, mail.reply_to, mail.headers, files)


def _allowed(outgoing: Outgoing, addresses: Sequence[str]) -> Sequence[str]:
    hashes = {each: hash_of(Channel.EMAIL, each) for each in addresses}
    categories = [""] if outgoing.is_transactional else ["", outgoing.category]
    found = Suppression.objects.filter(
        channel=Channel.EMAIL, recipient_hash__in=list(hashes.values()), category__in=categories
    ).values_list("recipient_hash", flat=True)
    suppressed = {bytes(each) for each in repeat(USING, lambda: list(found))}
    return [each for each in addresses if hashes[each] not in suppressed]


async def _fetched(url: str, left: int, number: int) -> bytes:
    # Imported late, because few mails need the client.
    from delayed_queue.http.callbacks.client import fetch

    result = await fetch(url, left + 1)
    if not result.is_success:
        is_refused = 300 <= (result.status or 0) < 500 and result.status not in _AGAIN
        is_final = is_refused or result.failure is Failure.BLOCKED
        raise NotFetched(number, result.code, is_final=is_final)
    if result.body is None:
        raise NotFetched(number, "compressed")
    if len(result.body) > left:
        raise NotFetched(number, f"over {FETCHED_BYTES} bytes")
    return result.body
