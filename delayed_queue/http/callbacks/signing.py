"""Signatures by Standard Webhooks 1.0: who has the secret can tell that a callback is ours."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets as randomness
from collections.abc import Sequence
from typing import Final

from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage

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
        raise InvalidMessage("A webhook-id is 1 to 128 of A-Z, a-z, 0-9, '_', '-' and ':'.")
    if not secrets:
        raise InvalidConfiguration("A callback is signed with one secret at least.")
    content = f"{message_id}.{timestamp:d}.".encode() + body
    return {
        ID: message_id,
        TIMESTAMP: f"{timestamp:d}",
        SIGNATURE: " ".join(_signature(_key(secret), content) for secret in secrets),
    }


def _signature(key: bytes, content: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(key, content, "sha256")).decode()


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not 24 <= len(key) <= 64:
        raise InvalidConfiguration("A secret is whsec_ and the base64 of 24 to 64 bytes.")
    return key
