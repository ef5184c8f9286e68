"""A callback's request, its signature by Standard Webhooks 1.0, and its result."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets as randomness
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final

from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage

EXCERPT_BYTES: Final = 1024
GONE: Final = 410
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
# The client sets these: they define the end of a request, or its target.
_RESERVED: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive"}
    | {"proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)


@dataclass(frozen=True, slots=True)
class CallbackRequest:
    """A POST of these bytes to this url. The headers are those of the signature and of the job.

    With ``fetches`` it is a GET instead, of at most that many bytes of the answer's body.
    """

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    fetches: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or name.lower() in _RESERVED:
                raise InvalidMessage(f"A callback cannot have the header {name!r}.")
            if not _HEADER_VALUE.fullmatch(value):
                raise InvalidMessage(f"The header {name!r} has a value that cannot be sent.")


# The signature

PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32
ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
# No full stop: it separates the parts of what is signed.
_MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9_:-]{1,128}")


def new_secret() -> str:
    """Return a new random secret of 32 bytes, written ``whsec_…``."""
    return PREFIX + base64.b64encode(randomness.token_bytes(SECRET_BYTES)).decode()


def webhook_id(*parts: str) -> str:
    """Return the id of a message, derived from its parts: equal parts give equal ids."""
    joined = "\0".join(parts).encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(joined).digest()[:20]
    return "msg_" + base64.b32encode(digest).decode().lower()


def sign(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers; one signature for each secret, in their order.

    The timestamp is the attempt's, in seconds since 1970. Raises InvalidMessage for an id that
    cannot be signed, InvalidConfiguration for an invalid secret.
    """
    if not _MESSAGE_ID.fullmatch(message_id):
        raise InvalidMessage(
            "A webhook-id has 1 to 128 characters of A-Z, a-z, 0-9, '_', '-' and ':'."
        )
    if not secrets:
        raise InvalidConfiguration("A callback needs at least one secret to sign with.")
    content = f"{message_id}.{timestamp:d}.".encode() + body
    return {
        ID: message_id,
        TIMESTAMP: f"{timestamp:d}",
        SIGNATURE: " ".join(_signature(_key(secret), content) for secret in secrets),
    }


def _signature(key: bytes, content: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(key, content, "sha256")).decode()


@lru_cache(maxsize=1000)
def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not 24 <= len(key) <= 64:
        raise InvalidConfiguration("A secret is whsec_ and the base64 of 24 to 64 bytes.")
    return key


# The result


class Failure(StrEnum):
    """The reason of a failed callback; the values are stored, so they must not change."""

    BLOCKED = "blocked"
    DNS = "dns"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS = "tls"
    TIMEOUT = "timeout"
    RESET = "reset"
    PROTOCOL = "protocol"
    TOO_LARGE = "too_large"
    STATUS = "status"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class CallbackResult:
    """The result of one callback, as the log of attempts stores it.

    ``failure``: None for success: a complete 2xx answer, or one longer than the limit.
    ``detail``: a sentence about the failure, for the operator.
    ``status``: None without an answer; set also when the body failed.
    ``is_ambiguous``: the receiver may have acted on it without confirming.
    ``address``: the dialled address; empty if none was dialled.
    ``excerpt``: the start of the answer, cleaned; at most 1 KiB in UTF-8.
    ``bytes_read``: bytes of the answer's body.
    ``body``: what a GET fetched; None if it is compressed.
    """

    duration: timedelta
    failure: Failure | None = None
    detail: str = ""
    status: int | None = None
    is_ambiguous: bool = False
    address: str = ""
    retry_after: timedelta | None = None
    excerpt: str = field(default="", repr=False)
    bytes_read: int = 0
    body: bytes | None = field(default=b"", repr=False)

    @property
    def is_success(self) -> bool:
        return self.failure is None

    @property
    def code(self) -> str:
        """The status of the answer, or else the failure."""
        return str(self.failure if self.status is None else self.status)

    @property
    def disables_endpoint(self) -> bool:
        """True for 410: the receiver is gone for good."""
        return self.status == GONE

    @property
    def is_final(self) -> bool:
        """True if a retry cannot help: the receiver is gone, or the guard refuses the url."""
        return self.disables_endpoint or self.failure is Failure.BLOCKED


def least_wait(step: timedelta, asked: timedelta | None) -> timedelta:
    """Return the wait: the ladder's step, or the receiver's ``Retry-After`` if that is longer.

    ``Retry-After`` never shortens a wait: else a receiver that answers 0, or a past date, would
    use up all attempts within a second.
    """
    return step if asked is None else max(step, asked)


def retry_after_of(headers: Mapping[str, str], limit: timedelta) -> timedelta | None:
    """Return the wait of the ``Retry-After`` header, from zero to the limit.

    None without the header, and for a value that is neither seconds nor a date. A date counts from
    the answer's own ``Date``, which every server with a clock sends, so no wrong clock matters.
    """
    asked = headers.get("Retry-After", "").strip()
    if asked.isascii() and asked.isdigit():
        # Checked before int(), which is slow for thousands of digits.
        return limit if len(asked) > 9 else min(timedelta(seconds=int(asked)), limit)
    until, since = _http_date(asked), _http_date(headers.get("Date", ""))
    if until is None or since is None:
        return None
    return min(max(until - since, timedelta(0)), limit)


def _http_date(text: str) -> datetime | None:
    try:
        parsed = parsedate_to_datetime(text)
        # A date in the asctime format has no zone; HTTP dates are UTC.
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def excerpt_of(body: bytes, encoding: str = "") -> str:
    """Return the start of an answer's body as text that can be stored and shown."""
    if encoding.strip().lower() not in {"", "identity"}:
        return f"({len(body)} bytes or more, encoded)"
    text = body[:EXCERPT_BYTES].decode("utf-8", "replace")
    shown = "".join(sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in text)
    return shown.encode()[:EXCERPT_BYTES].decode("utf-8", "ignore")
