"""Every call of the queue beside the bare SQL for it: the comparisons of ``make bench``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from benchmarks.bare import BareQueue
from benchmarks.shared.database import KIND, PAYLOAD, QUEUE, Connection, empty, fill, fill_groups
from benchmarks.shared.short_turns import Comparison, Workload
from benchmarks.shared.workers import worker_for
from delayed_queue import DelayedQueue, Groups, ScheduledMessage
from delayed_queue.codecs import JsonCodec, channel_of
from delayed_queue.db.sql import NOTIFY
from delayed_queue.queue.store.offer import OFFER_OR_UPDATE

OURS: Final = "delayed_queue"
BARE: Final = "bare_queue"
SINGLES: Final = 5_000
BACKLOG: Final = 20_000
BATCH: Final = 1_000
CLAIM: Final = 500
GROUPS: Final = 1_000
HOUR: Final = timedelta(hours=1)
OFFER_FUNCTION: Final = """
SELECT delayed_queue_offer(%s, %s, %s::jsonb, delay => %s::interval)
"""


def comparisons(connection: Connection) -> list[Comparison]:
    """Return the comparisons of single calls, batches, claims by group and drains."""
    queue, bare = DelayedQueue(QUEUE, codec="bytes"), BareQueue(connection, KIND)
    return [
        *_offers(connection, queue, bare),
        *_function_offers(connection),
        _batch_offer(connection, queue, bare),
        *(_poll(connection, queue, bare, messages) for messages in (1, 10, 100, 1000)),
        _consume(connection, queue, bare),
        *(_grouped_poll(connection, bare, messages) for messages in (1, 10, 100)),
        _drain(connection, bare, "drain", f"claims of {CLAIM}, one thread", 1, CLAIM),
        _drain(connection, bare, "drain-defaults", "claims of 100, 8 threads", 8, 100),
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
    later = offers(OURS, lambda key: queue.offer_or_update(key, PAYLOAD, delay=HOUR))
    bare_offer = offers(BARE, lambda key: bare.offer(key, PAYLOAD))
    announced = offers(BARE, bare_offer_and_notify)
    return [
        Comparison(
            "offer", "`offer_or_update`, due now: stored and announced", due_now, bare_offer, 0.8
        ),
        Comparison("offer-notify", "the same, beside bare SQL with NOTIFY", due_now, announced),
        Comparison("offer-later", "`offer_or_update`, due in an hour", later, bare_offer, 0.8),
    ]


def _function_offers(connection: Connection) -> list[Comparison]:
    """Return an offer by the SQL function beside the statements that `offer_or_update` sends."""
    kind, payload = f"{QUEUE}|json", '{"total": 40, "customer": "A-17", "items": [1, 2, 3]}'
    fixed: dict[str, Any] = {
        "kind": kind, "payload": JsonCodec().encode(json.loads(payload)), "schedule_at": None,
        "headers": None, "group": None, "expires_at": None, "expires_in": None, "now": None,
    }  # fmt: skip

    def offers(offer: Callable[[str], Any]) -> Workload:
        def prepare() -> Sequence[str]:
            empty(connection, OURS)
            return [f"key-{number}" for number in range(SINGLES)]

        return Workload(1, prepare, offer)

    def by_statement(key: str, delay: int) -> None:
        connection.execute(OFFER_OR_UPDATE, {**fixed, "key": key, "delay": delay}, prepare=True)
        if not delay:
            connection.execute(NOTIFY, {"channel": channel_of(kind)}, prepare=True)

    def by_function(key: str, delay: str) -> None:
        connection.execute(OFFER_FUNCTION, (QUEUE, key, payload, delay), prepare=True)

    now = offers(lambda key: by_function(key, "0 s")), offers(lambda key: by_statement(key, 0))
    later = (
        offers(lambda key: by_function(key, "1 hour")),
        offers(lambda key: by_statement(key, 3_600_000)),
    )
    beside = "beside the statement of `offer_or_update`"
    return [
        Comparison("offer-sql", f"`delayed_queue_offer`, {beside} and its NOTIFY", *now, 0.87),
        Comparison("offer-sql-later", f"the same, due in an hour, {beside}", *later, 0.87),
    ]


def _batch_offer(connection: Connection, queue: DelayedQueue, bare: BareQueue) -> Comparison:
    def batches(table: str, message: Callable[[str], Any], offer: Callable[[Any], Any]) -> Workload:
        def prepare() -> Sequence[Sequence[Any]]:
            empty(connection, table)
            messages = [message(f"key-{number}") for number in range(BACKLOG)]
            return [messages[start : start + BATCH] for start in range(0, BACKLOG, BATCH)]

        return Workload(BATCH, prepare, offer)

    ours = batches(OURS, lambda key: ScheduledMessage(key, PAYLOAD), queue.offer_batch)
    copy = batches(BARE, lambda key: (key, PAYLOAD), bare.copy)
    return Comparison("offer-batch", "`offer_batch` of 1,000, beside `COPY`", ours, copy, 0.6)


def _poll(
    connection: Connection, queue: DelayedQueue, bare: BareQueue, messages: int
) -> Comparison:
    def poll_one() -> int:
        envelope = queue.try_poll()
        return int(envelope is not None and envelope.acknowledge())

    def poll_many() -> int:
        return queue.try_poll_many(messages).acknowledge()

    def bare_poll_one() -> int:
        lease_id, rows = bare.claim(1)
        return bare.acknowledge(rows[0][0], lease_id) if rows else 0

    is_one = messages == 1
    call = "`try_poll`" if is_one else f"`try_poll_many({messages})`"
    return Comparison(
        f"poll-{messages}", f"{call} + `acknowledge`",
        _taking(connection, OURS, messages, poll_one if is_one else poll_many),
        _taking(connection, BARE, messages, bare_poll_one if is_one else bare.take(messages)),
        aim=0.8 if is_one else 0.6,
    )  # fmt: skip


def _consume(connection: Connection, queue: DelayedQueue, bare: BareQueue) -> Comparison:
    def consume() -> int:
        with queue.consume() as envelope:
            return int(envelope is not None)

    return Comparison(
        "consume", "`consume`, beside `BEGIN`, `DELETE`, `COMMIT`",
        _taking(connection, OURS, 1, consume), _taking(connection, BARE, 1, bare.consume), aim=0.8,
    )  # fmt: skip


def _taking(
    connection: Connection, table: str, messages: int, take: Callable[[], int],
    prepare: Callable[[int], Any] | None = None,
) -> Workload:  # fmt: skip
    """Return the workload of taking messages out of a backlog that never runs dry."""
    operations = min(BACKLOG // messages, SINGLES)
    # One batch more than is taken: the last claim must not be cheaper than the others.
    count = (operations + 1) * messages

    def prepared() -> Sequence[None]:
        (prepare or (lambda count: fill(connection, table, count)))(count)
        return [None] * operations

    def operate(_: None) -> None:
        if (taken := take()) != messages:
            raise RuntimeError(f"{taken} messages were taken, not {messages}.")

    return Workload(messages, prepared, operate)


def _grouped_poll(connection: Connection, bare: BareQueue, messages: int) -> Comparison:
    queue = DelayedQueue("grouped", codec="bytes")

    def prepare(count: int) -> None:
        fill_groups(connection, queue.kind, count * 2, GROUPS)
        queue.groups.set(Groups(concurrency=2))

    def poll() -> int:
        return queue.try_poll_many(messages).acknowledge()

    return Comparison(
        f"groups-{messages}",
        f"`try_poll_many({messages})` + `acknowledge`, {GROUPS:,} groups, at most 2 of each",
        _taking(connection, OURS, messages, poll, prepare),
        _taking(connection, BARE, messages, bare.take(messages)),
    )


def _drain(
    connection: Connection, bare: BareQueue, name: str, title: str, threads: int, batch_size: int
) -> Comparison:
    """Return the drain of a backlog by a worker, beside a loop over the same claims."""

    def backlog(table: str) -> Callable[[], Sequence[None]]:
        def prepare() -> Sequence[None]:
            fill(connection, table, BACKLOG)
            return [None]

        return prepare

    def work(_: None) -> None:
        worker = worker_for(
            QUEUE, do_nothing, concurrency=threads, batch_size=batch_size, burst=True
        )
        _check(worker.run().done)

    def loop(_: None) -> None:
        _check(sum(iter(bare.take(CLAIM, do_nothing), 0)))

    return Comparison(
        name, f"drain by one worker, {title}",
        Workload(BACKLOG, backlog(OURS), work), Workload(BACKLOG, backlog(BARE), loop),
    )  # fmt: skip


def do_nothing(message: Any) -> None:
    """Handle a message: an envelope or a row."""


def _check(handled: int) -> None:
    if handled != BACKLOG:
        raise RuntimeError(f"{handled} messages were handled, not {BACKLOG}.")
