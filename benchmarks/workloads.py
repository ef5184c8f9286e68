"""What is measured: each kind of work as the queue does it, and as bare SQL does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import psycopg

from benchmarks.bare import BareQueue
from benchmarks.database import BARE, KIND, OURS, PAYLOAD, empty, fill
from benchmarks.measuring import Comparison, Workload
from delayed_queue import DelayedQueue, ScheduledMessage

SINGLES: Final = 5_000
BACKLOG: Final = 20_000
BATCH: Final = 1_000
HOUR: Final = timedelta(hours=1)
Connection = psycopg.Connection[Any]


def comparisons(connection: Connection) -> list[Comparison]:
    """Return every comparison of one call of the queue with the bare SQL for it."""
    queue = DelayedQueue("benchmark", codec="bytes")
    bare = BareQueue(connection, KIND)
    return [
        *_offers(connection, queue, bare),
        _batch_offer(connection, queue, bare),
        *(_polls(connection, queue, bare, messages) for messages in (1, 10, 100, 1000)),
        _consume(connection, queue, bare),
    ]


def _offers(connection: Connection, queue: DelayedQueue, bare: BareQueue) -> list[Comparison]:
    def offers(table: str, offer: Callable[[str], Any]) -> Workload:
        def prepare() -> Sequence[str]:
            empty(connection, table)
            return [f"key-{number}" for number in range(SINGLES)]

        return Workload(1, prepare, offer)

    def bare_offer_and_notify(key: str) -> None:
        bare.offer(key, PAYLOAD)
        bare.notify()

    due_now = offers(OURS, lambda key: queue.offer_or_update(key, PAYLOAD))
    return [
        Comparison(
            "offer",
            "`offer_or_update`, due now: stored and announced",
            due_now,
            offers(BARE, lambda key: bare.offer(key, PAYLOAD)),
            target=0.8,
        ),
        Comparison(
            "offer-notify",
            "the same, against bare SQL that announces too",
            due_now,
            offers(BARE, bare_offer_and_notify),
        ),
        Comparison(
            "offer-later",
            "`offer_or_update`, due in an hour: stored",
            offers(OURS, lambda key: queue.offer_or_update(key, PAYLOAD, delay=HOUR)),
            offers(BARE, lambda key: bare.offer(key, PAYLOAD)),
            target=0.8,
        ),
    ]


def _batch_offer(connection: Connection, queue: DelayedQueue, bare: BareQueue) -> Comparison:
    def batches(table: str, message: Callable[[str], Any], offer: Callable[[Any], Any]) -> Workload:
        def prepare() -> Sequence[Sequence[Any]]:
            empty(connection, table)
            messages = [message(f"key-{number}") for number in range(BACKLOG)]
            return [messages[start : start + BATCH] for start in range(0, BACKLOG, BATCH)]

        return Workload(BATCH, prepare, offer)

    return Comparison(
        "offer-batch",
        "`offer_batch` of 1,000, against `COPY`",
        batches(OURS, lambda key: ScheduledMessage(key, PAYLOAD), queue.offer_batch),
        batches(BARE, lambda key: (key, PAYLOAD), bare.copy),
        target=0.6,
    )


def _polls(
    connection: Connection, queue: DelayedQueue, bare: BareQueue, messages: int
) -> Comparison:
    def poll_one() -> int:
        envelope = queue.try_poll()
        return int(envelope is not None and envelope.acknowledge())

    def poll_many() -> int:
        return queue.try_poll_many(messages).acknowledge()

    def bare_poll() -> int:
        lease_id, rows = bare.claim(messages)
        return bare.acknowledge_lease(lease_id) if rows else 0

    def bare_poll_one() -> int:
        lease_id, rows = bare.claim(1)
        return bare.acknowledge(rows[0][0], lease_id) if rows else 0

    call = "`try_poll`" if messages == 1 else f"`try_poll_many({messages})`"
    return Comparison(
        f"poll-{messages}",
        f"{call} + `acknowledge`",
        _taking(connection, OURS, messages, poll_one if messages == 1 else poll_many),
        _taking(connection, BARE, messages, bare_poll_one if messages == 1 else bare_poll),
        target=0.8 if messages == 1 else 0.6,
    )


def _consume(connection: Connection, queue: DelayedQueue, bare: BareQueue) -> Comparison:
    def consume() -> int:
        with queue.consume() as envelope:
            return int(envelope is not None)

    def bare_consume() -> int:
        bare.begin()
        rows = bare.consume(1)
        bare.commit()
        return len(rows)

    return Comparison(
        "consume",
        "`consume`, against `BEGIN`, `DELETE`, `COMMIT`",
        _taking(connection, OURS, 1, consume),
        _taking(connection, BARE, 1, bare_consume),
        target=0.8,
    )


def _taking(connection: Connection, table: str, messages: int, take: Callable[[], int]) -> Workload:
    """Return the workload of taking messages out of a backlog that does not run dry."""
    operations = min(BACKLOG // messages, SINGLES)

    def prepare() -> Sequence[None]:
        # A batch more than is taken: the last claim must not be cheaper than the others.
        fill(connection, table, (operations + 1) * messages)
        return [None] * operations

    def operate(_: None) -> None:
        if (taken := take()) != messages:
            raise RuntimeError(f"{taken} messages were taken, not {messages}.")

    return Workload(messages, prepare, operate)
