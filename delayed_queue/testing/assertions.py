"""Assertions on what a queue holds; they lease nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from delayed_queue.messages import MessageState, StoredMessage, from_milliseconds, to_milliseconds
from delayed_queue.models import DeadLetter
from delayed_queue.queue.fingerprints import fingerprint
from delayed_queue.queue.queue import DelayedQueue
from delayed_queue.testing.queues import InMemoryQueue
from delayed_queue.testing.stores import Letter


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "<anything>"


ANYTHING: Final = _Anything()


def assert_offered(
    queue: DelayedQueue,
    key: str,
    payload: Any = ANYTHING,
    *,
    schedule_at: datetime | None = None,
    headers: Mapping[str, Any] | None = None,
    state: MessageState | str | None = None,
) -> StoredMessage:
    """Return the message stored under the key, or fail when there is none or it differs.

    ``schedule_at`` is compared in whole milliseconds, as it is stored; what is left out may
    be anything.
    """
    stored = queue.read(key)
    if stored is None:
        raise AssertionError(f"No message {key!r} is in {queue!r}.")
    found: dict[str, Any] = {"payload": stored.payload}
    wanted: dict[str, Any] = {"payload": payload}
    if schedule_at is not None:
        found["schedule_at"] = stored.scheduled_at_initially
        wanted["schedule_at"] = from_milliseconds(to_milliseconds(schedule_at))
    if headers is not None:
        found["headers"], wanted["headers"] = stored.headers, dict(headers)
    if state is not None:
        found["state"], wanted["state"] = str(stored.state), str(state)
    # The wanted first: ANYTHING must be asked, not a payload with an opinion of its own.
    if any(wanted[name] != found[name] for name in wanted):
        raise AssertionError(f"The message {key!r} in {queue!r} is {found}, not {wanted}.")
    return stored


def assert_not_offered(queue: DelayedQueue, key: str) -> None:
    """Fail when a message is stored under the key, in any state."""
    stored = queue.read(key)
    if stored is not None:
        raise AssertionError(f"The message {key!r} is in {queue!r}, {stored.state}.")


def assert_dead(queue: DelayedQueue, key: str, *, reason: str = "") -> DeadLetter:
    """Return the newest dead letter of the key, or fail when there is none for the reason.

    The reason's beginning is enough.
    """
    letters = [letter for letter in dead_letters(queue) if letter.key == key]
    for letter in reversed(letters):
        if letter.reason.startswith(reason):
            return letter
    others = ", ".join(repr(letter.reason) for letter in letters) or "none"
    raise AssertionError(
        f"No dead letter {key!r} in {queue!r} has a reason like {reason!r}; found: {others}."
    )


def dead_letters(queue: DelayedQueue) -> list[DeadLetter]:
    """Return the queue's dead letters in the order of their deaths.

    An in-memory queue's are made up as model instances that no database knows.
    """
    if isinstance(queue, InMemoryQueue):
        with queue.store.lock:
            return [_as_model(letter) for letter in queue.store.letters_of(queue.kind)]
    return list(DeadLetter.objects.using(queue.using).filter(kind=queue.kind).order_by("id"))


def _as_model(letter: Letter) -> DeadLetter:
    return DeadLetter(
        id=letter.id,
        kind=letter.kind,
        key=letter.key,
        payload=letter.payload,
        headers=None if letter.headers is None else json.loads(letter.headers),
        attempts=letter.attempts,
        reason=letter.reason,
        first_error=letter.first_error,
        last_error=letter.last_error,
        scheduled_at_initially=from_milliseconds(letter.scheduled_at_initially),
        created_at=from_milliseconds(letter.created_at),
        died_at=from_milliseconds(letter.died_at),
        fingerprint=fingerprint(letter.reason, letter.last_error),
        group=letter.group,
    )
