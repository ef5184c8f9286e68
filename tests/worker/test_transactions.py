"""Transactional handlers: their writes exist if and only if the message is gone (W11)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection

from delayed_queue import DelayedQueue, Envelope, Reject, RetryPolicy, ScheduledMessage, Snooze
from delayed_queue.handlers import Handler
from delayed_queue.models import DeadLetter, Message
from delayed_queue.worker.engine.settling import Counts
from tests.support.running import handler_of, worker_with
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]

HOUR = RetryPolicy.ladder("1h")


def transaction_id() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT txid_current()")
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])


def write(envelope: Envelope) -> None:
    """Record the transaction's id as an effect; then do what the payload requests."""
    Effect.objects.create(
        queue=envelope.queue,
        key=envelope.key,
        attempt=envelope.attempt,
        pid=transaction_id() % 2**31,
    )
    match envelope.payload:
        case "fail":
            raise ValueError("asked to fail")
        case "exit":
            raise SystemExit(3)
        case "snooze":
            raise Snooze(timedelta(hours=1))
        case "reject":
            raise Reject("asked to be rejected")
        case "break":
            Permission.objects.create(name="x", codename="x", content_type_id=2**31 - 1)


def handler(name: str = "moved", function: Any = write, **options: Any) -> Handler:
    return handler_of(name, function, transactional=True, **{"retry": HOUR, **options})


def offer(count: int, queue: str = "moved", **payloads: str) -> None:
    """Offer k0 … with the payloads named."""
    keys = [f"k{n}" for n in range(count)]
    DelayedQueue(queue).offer_batch(ScheduledMessage(key, payloads.get(key)) for key in keys)


def drain(*handlers: Handler, **options: Any) -> Counts:
    return worker_with(*handlers, burst=True, **options).run()


def written() -> set[str]:
    return set(Effect.objects.values_list("key", flat=True))


# Records the transaction in which each message was deleted.
NOTE_DELETIONS = """
CREATE TABLE gone (key text, txid bigint);
CREATE FUNCTION note_gone() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO gone VALUES (OLD."pKey", txid_current()); RETURN OLD; END $$;
CREATE TRIGGER note_gone BEFORE DELETE ON delayed_queue
FOR EACH ROW EXECUTE FUNCTION note_gone()
"""


def run_sql(statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return [] if cursor.description is None else cursor.fetchall()


@pytest.fixture
def _deletions_noted() -> Iterator[None]:
    run_sql(NOTE_DELETIONS)
    yield
    run_sql("DROP TRIGGER note_gone ON delayed_queue; DROP FUNCTION note_gone; DROP TABLE gone")


@pytest.mark.usefixtures("_deletions_noted")
def test_effects_and_deletions_of_a_batch_are_one_transaction() -> None:
    offer(20)
    assert drain(handler(batch_size=5), concurrency=1) == Counts(done=20)
    gone = dict(run_sql("SELECT key, txid FROM gone"))
    assert dict(Effect.objects.values_list("key", "pid")) == gone
    assert max(Counter(gone.values()).values()) == 5


@pytest.mark.parametrize("times", [1, 1000])
def test_a_conflict_counts_as_a_failure_only_when_it_comes_again_and_again(times: int) -> None:
    """Q30, Q33: its batch is retried at once, then message by message."""
    met: list[str] = []

    def meet(envelope: Envelope) -> None:
        write(envelope)
        met.append(envelope.key)
        if envelope.key == "k1" and met.count("k1") <= times:
            run_sql("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")

    offer(3)
    is_lasting = times > 1
    counts = drain(handler(function=meet), concurrency=1)
    assert counts == (Counts(done=2, failed=1) if is_lasting else Counts(done=3))
    assert written() == {"k0", "k2"} | (set() if is_lasting else {"k1"})
    assert met.count("k1") == (23 if is_lasting else 2)


@pytest.mark.parametrize(
    ("payload", "counts"),
    [
        ("fail", Counts(done=4, failed=1)),
        ("exit", Counts(done=4, failed=1)),
        ("break", Counts(done=4, failed=1)),
        ("snooze", Counts(done=4, snoozed=1)),
        ("reject", Counts(done=4, dead=1)),
    ],
)
def test_a_member_that_fails_leaves_no_effect_and_spares_the_others(payload, counts):
    """Also if the commit raises: the content type of "break" does not exist."""
    offer(5, k2=payload)
    assert drain(handler()) == counts
    assert written() == {"k0", "k1", "k3", "k4"}
    assert Effect.objects.count() == 4
    if payload == "reject":
        assert DeadLetter.objects.get().reason == "asked to be rejected"
    else:
        left = Message.objects.get()
        assert (left.key, left.lease_id) == ("k2", None)
        assert left.attempts == (0 if payload == "snooze" else 1)


def test_failures_are_retried_then_buried_by_policy() -> None:
    offer(3, k1="fail")
    policy = RetryPolicy.ladder("1ms 1ms")
    total = Counter[str]()
    while Message.objects.exists():
        counts = drain(handler(retry=policy))
        total += Counter(done=counts.done, failed=counts.failed, dead=counts.dead)
    assert total == Counter(done=2, failed=2, dead=1)
    letter = DeadLetter.objects.get()
    assert (letter.key, letter.attempts) == ("k1", 3)
    assert letter.reason == "attempts exhausted: ValueError"
    assert "asked to fail" in (letter.first_error or "")


def test_an_undecodable_payload_is_dead_lettered_and_spares_the_others() -> None:
    DelayedQueue("moved", codec="text", kind="moved|json").offer_or_update("bad", "{")
    offer(3)
    assert drain(handler()).done == 3
    assert DeadLetter.objects.get().key == "bad"
    assert written() == {"k0", "k1", "k2"}


def test_w5_what_used_up_its_attempts_without_an_answer_is_dead_lettered_unhandled() -> None:
    offer(3)
    Message.objects.filter(key="k1").update(attempts=9, lease_id="crashed", scheduled_at=0)
    assert drain(handler()) == Counts(done=2, dead=1)
    assert DeadLetter.objects.get().reason.startswith("crashed")
    assert written() == {"k0", "k2"}


@pytest.mark.parametrize("size", [1, 3])
def test_no_transaction_takes_more_than_the_batch_size_of_the_handler(size: int) -> None:
    offer(10)
    assert drain(handler(batch_size=size)) == Counts(done=10)
    sizes = Counter(Effect.objects.values_list("pid", flat=True)).values()
    assert max(sizes) <= size
    assert len(sizes) >= 10 / size


@pytest.mark.parametrize("payload", [None, "fail"])
def test_max_messages_is_never_exceeded(payload: str | None) -> None:
    offer(20, **({} if payload is None else {f"k{n}": payload for n in range(20)}))
    counts = drain(handler(batch_size=3), max_messages=7, concurrency=4)
    assert counts.total == 7
    assert Message.objects.filter(attempts=0).count() == 13


def test_several_transactions_of_a_lane_run_at_once() -> None:
    together = threading.Barrier(2, timeout=20)

    def meet(envelope: Envelope) -> None:
        if envelope.payload == "meet":
            together.wait()

    # A consumer gets one more thread for each job that found messages; with max_messages a job is
    # one batch.
    offer(10, k3="meet", k4="meet")
    counts = drain(handler("moved", meet, batch_size=1), concurrency=3, max_messages=10)
    assert counts == Counts(done=10)


def test_w9_a_worker_whose_threads_are_all_busy_sleeps() -> None:
    spent: list[float] = []

    def handle(envelope: Envelope) -> None:
        if envelope.payload == "slow":
            started_at = time.process_time()
            threading.Event().wait(0.6)
            spent.append(time.process_time() - started_at)

    offer(8, k6="slow")
    assert drain(handler("moved", handle, batch_size=1), concurrency=1) == Counts(done=8)
    assert spent[0] < 0.3


def test_leased_and_transactional_consumers_share_the_threads() -> None:
    offer(10)
    offer(10, "leased")
    counts = drain(handler(), handler_of("leased", write), concurrency=2)
    assert counts == Counts(done=20)
    assert Effect.objects.count() == 20
