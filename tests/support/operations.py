"""The calls of a queue, each with its normal result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from delayed_queue import Batch, DelayedQueue, OfferOutcome, ScheduledMessage
from delayed_queue.facade import DROP_ALL_CONFIRMATION
from delayed_queue.models import DeadLetter
from tests.support.answers import polled, stored

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED
PAST: Final = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Scene:
    """A queue with a due message, a leased one and a dead one."""

    queue: DelayedQueue
    batch: Batch
    letter: int

    @classmethod
    def of(cls, queue: DelayedQueue) -> Scene:
        queue.offer_or_update("dead", None, PAST)
        polled(queue).reject("no")
        queue.offer_or_update("leased", None, PAST)
        batch = queue.try_poll_many(1)
        queue.offer_or_update("due", "old", PAST)
        return cls(queue, batch, DeadLetter.objects.get().id)


Operation = Callable[[Scene], Any]


def offer_batch(scene: Scene) -> list[OfferOutcome]:
    return scene.queue.offer_batch([ScheduledMessage(key, None, PAST) for key in ("new", "due")])


OPERATIONS: Final[dict[str, tuple[Operation, Any]]] = {
    "offer_or_update": (lambda scene: scene.queue.offer_or_update("due", "new", PAST), UPDATED),
    "offer_if_not_exists": (lambda scene: scene.queue.offer_if_not_exists("new", "new"), CREATED),
    "offer_batch": (offer_batch, [CREATED, UPDATED]),
    "try_poll": (lambda scene: polled(scene.queue).key, "due"),
    "acknowledge": (lambda scene: scene.batch[0].acknowledge(), True),
    "acknowledge a batch": (lambda scene: scene.batch.acknowledge(), 1),
    "release": (lambda scene: scene.batch[0].release(timedelta(minutes=1)), True),
    "extend": (lambda scene: scene.batch[0].extend(), True),
    "reject": (lambda scene: scene.batch[0].reject("no"), True),
    "read": (lambda scene: stored(scene.queue, "due").payload, "old"),
    "contains": (lambda scene: scene.queue.contains_message("due"), True),
    "drop": (lambda scene: scene.queue.drop_message("due"), True),
    "drop all": (lambda scene: scene.queue.drop_all_messages(DROP_ALL_CONFIRMATION), 2),
    "stats": (lambda scene: scene.queue.stats().due, 1),
    "redrive": (lambda scene: list(scene.queue.redrive([scene.letter]).values()), [CREATED]),
    "redrive all": (lambda scene: scene.queue.redrive_all(), {CREATED: 1}),
    "prune": (lambda scene: scene.queue.prune_dead_letters(timedelta(0)), 1),
    "pause": (lambda scene: scene.queue.pause("upgrade"), True),
    "resume": (lambda scene: scene.queue.resume(), False),
    "is paused": (lambda scene: scene.queue.is_paused(), False),
    "next due": (lambda scene: scene.queue.seconds_to_next_look() > 0, True),
}
