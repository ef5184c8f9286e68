"""The application's own functions in executors: loaded, and handed the messages they settle."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from delayed_queue.batch import Batch
from delayed_queue.codecs import Codec, codec_named, decode
from delayed_queue.db.sql import Row, Step, column_of, first_row, rows_of
from delayed_queue.durations import Duration, parse_duration
from delayed_queue.exceptions import InvalidConfiguration, PayloadNotDecodable
from delayed_queue.handlers import Handler, HandlerFunction, Verdict, judge, registry, storable
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.queue.store.claim import LeasedRow
from delayed_queue.queue.store.finishing import (
    DIED,
    DONE,
    EXPIRED,
    Leaving,
    batches_of,
    count_step,
    finish_step,
)
from delayed_queue.queue.store.settle import (
    ACKNOWLEDGE,
    EXTEND,
    LEASED_MEMBERS,
    ExtendedRow,
    dead_letter_step,
    release_step,
)
from delayed_queue.retries import RetryPolicy
from delayed_queue.spark.database import Connection, fetch, steady
from delayed_queue.spark.source.ledger import JobKey, task_of_stream, then_pruned
from delayed_queue.spark.source.members import has_batches
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.store.offering import COUNT_ENDED, ENDED_OF
from delayed_queue.spark.store.streaming import COUNT_DELIVERY

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")


def load(path: str) -> Any:
    """Return what ``package.module:name`` names, with Django set up if it has settings."""
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        # By name, because this side of the package imports no Django where none is wanted.
        importlib.import_module("django").setup()
    module, _, name = path.partition(":")
    try:
        return attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfiguration(
            f"{path!r} cannot be loaded: {error}. Write package.module:function."
        ) from error


def close_connections() -> None:
    """Close what the application opened by Django: an executor's process lives on, unused."""
    if "django.db" in sys.modules:
        sys.modules["django.db"].connections.close_all()


# Messages that are settled together, or eight rounds of concurrent calls, if that is more.
BATCH: Final = 200
_ROUNDS: Final = 8
_MOST_AT_ONCE: Final = 1_000
_LEASE_MS: Final = 600_000


# How messages end. A lost one had lost its lease meanwhile, and was not changed.
OUTCOMES: Final = ("done", "retried", "snoozed", "dead", "lost")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the ledger a try of a task counts what it settles.

    A count that came back with the task would be lost with it, and what it settled is not there
    for the next try to count.
    """

    key: JobKey
    partition: int = 0
    attempt: int = 0

    @classmethod
    def of_task(cls) -> Place:
        """Return the place of the task that this is."""
        context, key = task_of_stream()
        return cls(key, context.partitionId(), context.attemptNumber())

    def count(self, connection: Connection, **ends: int) -> None:
        """Add to what is counted here, in the transaction that is open."""
        for outcome, number in ends.items():
            if number:
                note = self.key.note(
                    self.partition, chunk=self.attempt, digest=outcome, rows=number
                )
                fetch(connection, COUNT_ENDED, note)


def ended_of(key: JobKey) -> Counter[str]:
    """Return the outcomes of a finished batch; those of earlier batches are deleted."""
    rows = then_pruned(Options(), "The count", lambda link: fetch(link, ENDED_OF, asdict(key)))
    return Counter(dict(rows))


@dataclass(frozen=True, slots=True)
class Handling:
    """The handler, and the rules that its decorator does not set."""

    handler: str
    queue: str
    codec: str = "json"
    retry: RetryPolicy | None = None
    # Default duration of ``envelope.extend()``.
    lease_ms: int = _LEASE_MS
    # The number of concurrent calls of a task.
    concurrency: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= _MOST_AT_ONCE:
            raise InvalidConfiguration(f"--concurrency is from 1 to {_MOST_AT_ONCE:,}.")

    def registered(self) -> Handler | None:
        """Return the registration of the function, if ``@handler`` decorates it."""
        function = load(self.handler)
        found = next((each for each in registry if each.function is function), None)
        if found is not None and found.many:
            raise InvalidConfiguration(
                f"{self.handler} receives batches (many=True); name a handler of one message."
            )
        return found


class HandledPartition:
    """Runs in the executors: gets ids and leases, and counts in the ledger; nothing comes back."""

    def __init__(self, handling: Handling, kind: str) -> None:
        self._handling = handling
        self._kind = kind

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with steady() as connection, Calls(self._handling) as calls:
            settler = Settler(connection, self._handling, self._kind, Place.of_task(), calls)
            for batch in batches:
                rows = zip(*(each.to_pylist() for each in batch.columns), strict=True)
                for lease_id, members in groupby(rows, key=lambda row: row[1]):
                    settler.handle(lease_id, [message_id for message_id, _ in members])
        yield from ()


class Calls:
    """Calls the handler, for several messages at once: on one loop, or in threads."""

    def __init__(self, handling: Handling) -> None:
        self._function: HandlerFunction = load(handling.handler)
        self._most = handling.concurrency
        self._runner = asyncio.Runner()
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="delayed-queue-handler")

    def __enter__(self) -> Calls:
        return self

    def each(self, envelopes: list[Envelope]) -> Iterator[Exception | None]:
        """Yield what each call has raised, in order."""
        if inspect.iscoroutinefunction(self._function):
            return iter(self._runner.run(self._gathered(envelopes)))
        return self._pool.map(self._called, envelopes)

    async def _gathered(self, envelopes: list[Envelope]) -> list[Exception | None]:
        room = asyncio.Semaphore(self._most)

        async def called(envelope: Envelope) -> Exception | None:
            async with room:
                try:
                    await _awaited(self._function(envelope))
                except Exception as error:
                    return error
            return None

        return await asyncio.gather(*map(called, envelopes))

    def _called(self, envelope: Envelope) -> Exception | None:
        try:
            answer = self._function(envelope)
            if inspect.isawaitable(answer):
                asyncio.run(_awaited(answer))
        # The caller's code: every exception is an outcome.
        except Exception as error:
            return error
        return None

    def __exit__(self, *exc_info: object) -> None:
        """Close the loop, the threads, and what the application has opened in each of them."""
        together = threading.Barrier(self._most)
        # Each waits for all others, so there is one in each thread.
        for each in [self._pool.submit(_close_own, together) for _ in range(self._most)]:
            each.result()
        self._pool.shutdown()
        self._runner.close()
        close_connections()


def _close_own(together: threading.Barrier) -> None:
    together.wait()
    close_connections()


class Settler:
    """Handles messages under a lease, and writes down how each ended.

    A repeated task handles them one by one, and counts a delivery before each: the message that
    kills every time runs out of attempts, and none beside it.
    """

    def __init__(
        self, connection: Connection, handling: Handling, kind: str, place: Place, calls: Calls
    ) -> None:
        found = handling.registered()
        self._kind = kind
        # A message may have killed the executor of the try before.
        self._is_repeated = place.attempt > 0
        self._place = place
        self._connection = connection
        self._queue = handling.queue
        self._calls = calls
        self._size = 1 if self._is_repeated else max(BATCH, _ROUNDS * handling.concurrency)
        self._codec: Codec = codec_named(handling.codec) if found is None else found.codec
        declared = None if found is None else found.retry
        self._policy = declared or handling.retry or RetryPolicy.exponential()
        self._leases = ExecutorLeases(connection, handling.lease_ms)

    def handle(self, lease_id: str, ids: list[int]) -> None:
        for begin in range(0, len(ids), self._size):
            if self._is_repeated:
                self._leases.run((COUNT_DELIVERY, {"id": ids[begin], "lease_id": lease_id}))
            self._handle_batch(lease_id, ids[begin : begin + self._size])

    def _handle_batch(self, lease_id: str, ids: list[int]) -> None:
        """Handle those that are still under the lease; done ones are deleted at its end."""
        params = {"ids": ids, "lease_id": lease_id, "kind": self._kind, "now": None}
        # Read now, not by Spark: a repeated partition must not handle what it settled before.
        rows = rows_of(LeasedRow, fetch(self._connection, LEASED_MEMBERS, params))
        if len(rows) < len(ids):
            found = {each.id for each in rows}
            self._leases.remove_expired(lease_id, [each for each in ids if each not in found])
        taken = [(row, self._taken(row, lease_id)) for row in rows]
        called = [(row, each) for row, each in taken if isinstance(each, Envelope)]
        for row, each in taken:
            if isinstance(each, Verdict):
                self._settle(row, lease_id, each)
        done: list[LeasedRow] = []
        errors = self._calls.each([each for _, each in called])
        for (row, _), error in zip(called, errors, strict=True):
            if error is None:
                done.append(row)
            else:
                self._settle(row, lease_id, judge(error, row.attempts, self._policy))
        if done:
            step = ACKNOWLEDGE, {"ids": [row.id for row in done], "lease_id": lease_id}
            self._leases.count(self._place, DONE, step, done)

    def _taken(self, row: LeasedRow, lease_id: str) -> Envelope | Verdict:
        """Return what the handler is called with, or why it is not called."""
        if row.attempts > self._policy.max_attempts:
            # Every delivery ended without an answer: it may be what kills the executors.
            return Verdict(None, "attempts exhausted: no delivery ended with an answer")
        try:
            return self._envelope(row, lease_id)
        except PayloadNotDecodable as error:
            return Verdict(None, str(error))

    def _envelope(self, row: LeasedRow, lease_id: str) -> Envelope:
        return Envelope(
            row.key, decode(self._codec, row.payload), self._queue, row.attempts, lease_id, row.id,
            row.scheduled_at, row.due_at, row.leased_until,
            json.loads(row.headers) if row.headers else {}, self._leases, row.group,
            batch_id=row.batch_id,
        )  # fmt: skip

    def _settle(self, row: LeasedRow, lease_id: str, verdict: Verdict) -> None:
        error = verdict.error or None
        if verdict.delay is None:
            reason = storable(verdict.reason) or "rejected"
            outcome, step = DIED, dead_letter_step(lease_id, [row.id], reason, error)
        else:
            outcome, refund = ("retried", 0) if verdict.counts else ("snoozed", 1)
            delay = verdict.delay // MILLISECOND
            step = release_step(lease_id, [row.id], delay, refund, error)
        self._leases.count(self._place, outcome, step, [row])


async def _awaited(answer: Any) -> Any:
    return await answer


class ExecutorLeases:
    """The operations of an envelope on its lease, over an executor's own connection."""

    def __init__(self, connection: Connection, lease_ms: int = _LEASE_MS) -> None:
        self._connection = connection
        self._lease_ms = lease_ms
        # Threads of handlers are kept out of a transaction, which is another's.
        self._turn = threading.RLock()

    def run(self, step: Step) -> list[Row]:
        """Run the statement; return its rows, which are the messages that it changed."""
        with self._turn:
            return fetch(self._connection, *step)

    def count(self, place: Place, outcome: str, step: Step, rows: Sequence[LeasedRow]) -> None:
        """Settle, and count how many messages ended so, or had lost their lease."""
        with self._turn, self._connection.transaction():
            changed = self.settle(outcome, step, are_members=bool(batches_of(rows)))
            ends = {outcome: changed, "lost": len(rows) - changed}
            place.count(self._connection, **ends)

    def settle(self, outcome: str, step: Step, *, are_members: bool) -> int:
        """Run the settlement, by which members of batches may leave; return how many it changed."""
        if not are_members or outcome not in (DONE, DIED, EXPIRED):
            return len(self.run(step))
        members = [Leaving(each, step[1]["lease_id"], outcome) for each in step[1]["ids"]]
        with self._turn, self._connection.transaction():
            left = fetch(self._connection, *count_step(members))
            changed = len(self.run(step))
            fetch(self._connection, *finish_step(column_of(left)))
        return changed

    def remove_expired(self, lease_id: str, ids: list[int]) -> None:
        """Delete messages that expired before they were handled, if they may be members."""
        with self._turn:
            if has_batches(self._connection):
                step = ACKNOWLEDGE, {"ids": ids, "lease_id": lease_id}
                self.settle(EXPIRED, step, are_members=True)

    def _one(self, envelope: Envelope, outcome: str, step: Step) -> bool:
        changed = self.settle(outcome, step, are_members=envelope.batch_id is not None)
        envelope.lease_lost = envelope.lease_lost or not changed
        return bool(changed)

    def acknowledge(self, envelope: Envelope) -> bool:
        one = {"ids": [envelope.message_id], "lease_id": envelope.lease_id}
        return self._one(envelope, DONE, (ACKNOWLEDGE, one))

    def release(self, envelope: Envelope, delay: Duration | None = None, error: str = "") -> bool:
        wait = 0 if delay is None else parse_duration(delay) // MILLISECOND
        one = envelope.lease_id, [envelope.message_id]
        return self._one(envelope, "", release_step(*one, wait, 0, storable(error) or None))

    def extend(self, envelope: Envelope, duration: Duration | None = None) -> bool:
        span = None if duration is None else parse_duration(duration)
        lease = self._lease_ms if span is None else span // MILLISECOND
        params = {"ids": [envelope.message_id], "lease_ids": [envelope.lease_id]}
        extended = first_row(
            ExtendedRow, self.run((EXTEND, {**params, "lease": lease, "now": None}))
        )
        if extended is not None:
            envelope.leased_until_ms = extended.leased_until
        return extended is not None

    def reject(self, envelope: Envelope, reason: str) -> bool:
        one = envelope.lease_id, [envelope.message_id]
        return self._one(envelope, DIED, dead_letter_step(*one, storable(reason), None))

    def batch_of(self, envelope: Envelope) -> None:
        """Return nothing: executors add no members to batches."""

    def acknowledge_batch(self, batch: Batch) -> int:
        return sum(self.acknowledge(each) for each in batch)

    async def in_thread(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(call, *args, **kwargs)
