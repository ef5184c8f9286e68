"""Secrets of endpoints: sealed in the database, and which of them sign a callback."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.utils.encoding import force_bytes

from delayed_queue.exceptions import SecretNotReadable

ROTATION: Final = timedelta(hours=24)
# Part of each key: another text makes stored secrets unreadable.
_PURPOSE: Final = b"delayed_queue.http.callbacks.secrets"


def seal(secret: str) -> str:
    """Return the secret as it may be stored, sealed with the newest key."""
    return _box().encrypt(secret.encode()).decode()


def unseal(text: str) -> str:
    """Return the secret of a sealed text; raises SecretNotReadable if no key in force opens it."""
    try:
        return _box().decrypt(text.encode()).decode()
    except InvalidToken as error:
        raise SecretNotReadable from error


def in_force(
    current: str, previous: str, rotated_at: datetime | None, now: datetime
) -> tuple[str, ...]:
    """Return the sealed texts to sign with: the previous one too, for 24 h from its rotation."""
    if not previous or rotated_at is None or now - rotated_at >= ROTATION:
        return (current,)
    return (current, previous)


def _box() -> MultiFernet:
    return box_of(secret_keys(), _PURPOSE)


def secret_keys() -> tuple[str | bytes, ...]:
    """Return Django's keys, the newest first: each opens what it sealed before a rotation."""
    return (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)


# Cached, because deriving a key takes longer than sealing with it.
@lru_cache(maxsize=8)
def box_of(keys: tuple[str | bytes, ...], purpose: bytes) -> MultiFernet:
    """Return what seals with the first key and opens with each, for one purpose."""
    return MultiFernet([
        Fernet(base64.urlsafe_b64encode(_derived(force_bytes(key), purpose))) for key in keys
    ])  # fmt: skip


def _derived(key: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(key)
