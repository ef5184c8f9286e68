"""What is sent, signed by Standard Webhooks 1.0, and what came of it, once and many times."""

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
# These are the client's: they say where a request ends, or where it goes.
_RESERVED: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive"}
    | {"proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)


@dataclass(frozen=True, slots=True)
class CallbackRequest:
    """A POST of these bytes to this url. The headers are those of the signature and of the job."""

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or name.lower() in _RESERVED:
                raise InvalidMessage(f"A callback cannot have the header {name!r}.")
            if not _HEADER_VALUE.fullmatch(value):
                raise InvalidMessage(f"The header {name!r} has a value that cannot be sent.")


# Its signature: a receiver that has the secret can tell that it is ours

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
    """Return the id of a message for its parts, the same for the same parts at all times."""
    joined = "\0".join(parts).encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(joined).digest()[:20]
    return "msg_" + base64.b32encode(digest).decode().lower()


def sign(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers; one signature for each secret, in their order.

    The timestamp is that of the attempt, in seconds since 1970. Raises InvalidMessage for an id
    that cannot be signed, InvalidConfiguration for a secret that is none.
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


# Its end


class Failure(StrEnum):
    """Why a callback failed; the words are stored, and stay."""

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
    """What came of one callback, as the log of attempts stores it.

    ``failure``: None is success: a complete answer of 2xx, or one longer than we read.
    ``detail``: a sentence about the failure, for whoever looks after the endpoint.
    ``status``: None while there was no answer; also there when its body failed.
    ``is_ambiguous``: the receiver may have acted on it, but has not said so.
    ``address``: the one that was dialled; empty if none was.
    ``excerpt``: the beginning of the answer, cleaned; at most 1 KiB in UTF-8.
    ``bytes_read``: how much of the answer's body was read.
    """

    started_at: datetime
    duration: timedelta
    failure: Failure | None = None
    detail: str = ""
    status: int | None = None
    is_ambiguous: bool = False
    address: str = ""
    retry_after: timedelta | None = None
    excerpt: str = field(default="", repr=False)
    bytes_read: int = 0

    @property
    def is_success(self) -> bool:
        return self.failure is None

    @property
    def code(self) -> str:
        """The status of the answer, or else the failure."""
        return str(self.failure if self.status is None else self.status)

    @property
    def disables_endpoint(self) -> bool:
        """Return whether the receiver said that it is gone for good."""
        return self.status == GONE

    @property
    def is_final(self) -> bool:
        """Return whether no other try will do: it is gone, or our own guard refuses the url."""
        return self.disables_endpoint or self.failure is Failure.BLOCKED


def least_wait(step: timedelta, asked: timedelta | None) -> timedelta:
    """Return how long to wait where the ladder says ``step`` and the receiver may have asked.

    ``Retry-After`` can lengthen a wait and never shorten it: a receiver that answers 0, or a date
    that is over, would otherwise use up all attempts within a second.
    """
    return step if asked is None else max(step, asked)


def retry_after_of(headers: Mapping[str, str], now: datetime, limit: timedelta) -> timedelta | None:
    """Return the wait that ``Retry-After`` asks for, from zero to the limit.

    None without the header, and for a value that is neither seconds nor a date. A date is read
    against the answer's own ``Date``, so that the receiver's clock may be wrong.
    """
    asked = headers.get("Retry-After", "").strip()
    if asked.isascii() and asked.isdigit():
        # Not int() first: a number of eight thousand digits takes long.
        return limit if len(asked) > 9 else min(timedelta(seconds=int(asked)), limit)
    until = _http_date(asked)
    if until is None:
        return None
    wait = until - (_http_date(headers.get("Date", "")) or now)
    return min(max(wait, timedelta(0)), limit)


def _http_date(text: str) -> datetime | None:
    try:
        parsed = parsedate_to_datetime(text)
        # An asctime date has no zone; HTTP dates are UTC.
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def excerpt_of(body: bytes, encoding: str = "") -> str:
    """Return the beginning of an answer's body as text that can be stored and shown."""
    if encoding.strip().lower() not in {"", "identity"}:
        return f"({len(body)} bytes or more, encoded)"
    text = body[:EXCERPT_BYTES].decode("utf-8", "replace")
    shown = "".join(sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in text)
    return shown.encode()[:EXCERPT_BYTES].decode("utf-8", "ignore")
