"""Idempotency keys: the first answer to a request is saved, and repeated requests get it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from hashlib import sha256
from typing import Final

from django.db import DEFAULT_DB_ALIAS, Error, transaction

from delayed_queue.db.resilience import repeat
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.http.conf import MAX_KEY
from delayed_queue.http.models import IdempotencyKey
from delayed_queue.http.store.callers import AnswerRow
from delayed_queue.messages import MILLISECOND

RETENTION: Final = timedelta(hours=24)
_PRUNE_SECONDS: Final = 600.0
# While there is more than a batch to delete: keys may come a thousand a second.
_PRUNE_AGAIN_SECONDS: Final = 1.0
_BATCH: Final = 1000
next_prune_at = 0.0


class Refusal(StrEnum):
    """The reason why a request does not get the saved answer of its key."""

    OTHER_REQUEST = "other_request"
    IN_PROGRESS = "in_progress"


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The status and the body of an answer."""

    status: int
    body: str
    is_replay: bool = False


def once(
    scope: str,
    key: str,
    request: bytes,
    call: Callable[[], KeptAnswer],
    *,
    using: str = DEFAULT_DB_ALIAS,
) -> KeptAnswer | Refusal:
    """Return the result of ``call()``, or the answer of the key in the last 24 hours.

    The answer is saved in the transaction in which ``call`` writes, unless it raises. ``scope``
    names the caller and the call; keys of different scopes are different.
    """
    check_idempotency_key(key)
    digest = sha256(request).digest()
    # The holder of the key may be a lost try of this request that is about to commit.
    answer = repeat(
        using,
        partial(_once, scope, key, digest, call, using),
        doubt=lambda answer: answer is Refusal.IN_PROGRESS,
    )
    _prune_now_and_then(using)
    return answer


def check_idempotency_key(key: str) -> str:
    """Return the key; raise InvalidMessage unless it is 1 to 200 printable ASCII characters.

    A comma is invalid: servers use it to join a header that came twice.
    """
    is_key = 1 <= len(key) <= MAX_KEY and key.isascii() and key.isprintable()
    if not is_key or "," in key:
        raise InvalidMessage(
            f"An idempotency key has 1 to {MAX_KEY} printable ASCII characters, no "
            "comma, and is sent once."
        )
    return key


def _once(
    scope: str, key: str, digest: bytes, call: Callable[[], KeptAnswer], using: str
) -> KeptAnswer | Refusal:
    with transaction.atomic(using=using):
        age = RETENTION // MILLISECOND
        is_held, kept = IdempotencyKey.objects.hold(scope, key, age, using=using)
        if not is_held:
            return Refusal.IN_PROGRESS
        if kept is not None:
            return _replay(kept, digest)
        answer = call()
        row = AnswerRow(digest, answer.status, answer.body)
        IdempotencyKey.objects.save(scope, key, row, using=using)
        return answer


def _replay(kept: AnswerRow, digest: bytes) -> KeptAnswer | Refusal:
    if bytes(kept.request_hash) != digest:
        return Refusal.OTHER_REQUEST
    return KeptAnswer(kept.status, kept.answer, is_replay=True)


def prune_answers(*, limit: int = _BATCH, using: str = DEFAULT_DB_ALIAS) -> int:
    """Delete answers that are no longer replayed, at most ``limit``; return how many."""
    prune = partial(IdempotencyKey.objects.prune, RETENTION // MILLISECOND, limit=limit)
    return repeat(using, partial(prune, using=using))


def _prune_now_and_then(using: str) -> None:
    """Delete old answers, a batch every ten minutes or, while there are more, every second."""
    global next_prune_at
    now = time.monotonic()
    if now >= next_prune_at and not transaction.get_connection(using).in_atomic_block:
        next_prune_at = now + _PRUNE_SECONDS
        try:
            is_done = prune_answers(limit=_BATCH, using=using) < _BATCH
        except Error:
            # The request was answered; old answers can be deleted the next time.
            return
        if not is_done:
            next_prune_at = now + _PRUNE_AGAIN_SECONDS
