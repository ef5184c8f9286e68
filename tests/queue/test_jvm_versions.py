"""Q4 and Q36: a new version from the other service counts as a new message.

Its UPDATE names the eight shared columns only; our other columns keep values of the version before.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import pytest

from delayed_queue import (
    DelayedQueue,
    DeliveryType,
    Envelope,
    Groups,
    OfferOutcome,
    RetryPolicy,
    ScheduledMessage,
)
from delayed_queue.codecs import codec_named, jvm_kind
from delayed_queue.db.statements import fetch
from delayed_queue.handlers import Handler
from delayed_queue.http.jobs.adding import add_job
from delayed_queue.http.jobs.consuming import bury_job
from delayed_queue.http.jobs.dead import kick_job
from delayed_queue.http.jobs.jobs import Answer, IfExists
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import DeadLetter, Message
from delayed_queue.queue.store.claim import TRY_LOCK
from delayed_queue.spark.store.streaming import LEASE_DUE, READ_LEASED, READ_RANGE
from delayed_queue.testing import ManualClock, assert_dead, assert_offered
from tests.http.jobs.support import pop_jobs
from tests.queue.contract.support import HOUR, MILLISECOND, MINUTE, leased
from tests.queue.jvm import KIND, JvmService
from tests.support.concurrency import calling, raw_connection, wait_until_blocked
from tests.support.running import worker_with

pytestmark = pytest.mark.django_db(transaction=True)

HEADERS: Final = {"retry": 1}


@pytest.fixture
def clock() -> ManualClock:
    # Behind the database's clock: a message due by it is due for a worker too.
    return ManualClock(datetime.now(UTC) - HOUR)


@pytest.fixture
def jvm(clock: ManualClock) -> Iterator[JvmService]:
    with raw_connection() as session:
        yield JvmService(session, clock)


@pytest.fixture
def queue(clock: ManualClock) -> DelayedQueue:
    return DelayedQueue("my-queue", codec="text", kind=jvm_kind("my-queue"), clock=clock)


@pytest.fixture
def old(queue: DelayedQueue, clock: ManualClock) -> None:
    """A message of ours with headers, after three failures."""
    queue.offer_or_update("key-1", "old", headers=HEADERS)
    for number in range(1, 4):
        envelope = leased(queue)
        assert envelope.attempt == number
        envelope.release(error="failed")
    clock.advance(MILLISECOND)


def assert_new(envelope: Envelope, payload: str = "new") -> None:
    assert (envelope.key, envelope.payload, envelope.headers) == ("key-1", payload, {})
    assert (envelope.attempt, envelope.delivery_type) == (1, DeliveryType.FIRST)


@pytest.mark.usefixtures("old")
class TestTheirNewVersion:
    @pytest.mark.parametrize("transactional", [False, True])
    def test_q4_reaches_the_handler_of_a_worker(self, jvm: JvmService, transactional: bool):
        assert jvm.offer("key-1", "new") == "Updated"
        handled: list[Envelope] = []
        handler = Handler(
            "my-queue", handled.append, codec_named("text"), KIND,
            RetryPolicy.ladder("1m 1m"), transactional=transactional,
        )  # fmt: skip
        worker_with(handler, burst=True).run()
        assert not DeadLetter.objects.exists()
        (envelope,) = handled
        assert_new(envelope)

    def test_q4_is_polled_as_a_first_delivery(self, queue: DelayedQueue, jvm: JvmService):
        jvm.offer("key-1", "new")
        assert_new(leased(queue))

    def test_q4_is_read_as_new(self, queue: DelayedQueue, jvm: JvmService):
        jvm.offer("key-1", "new")
        stored = assert_offered(queue, "key-1", "new", headers={})
        assert (stored.attempts, stored.last_error) == (0, "")

    def test_q4_is_consumed_as_a_first_delivery(self, queue: DelayedQueue, jvm: JvmService):
        jvm.offer("key-1", "new")
        with queue.consume() as envelope:
            assert envelope is not None
            assert_new(envelope)

    def test_q4_counts_the_failures_of_its_own(self, queue, jvm, clock):
        jvm.offer("key-1", "new")
        with pytest.raises(ValueError, match="of the new"), queue.consume():
            raise ValueError("of the new")
        assert assert_offered(queue, "key-1", "new").attempts == 1
        clock.advance(HOUR)
        envelope = leased(queue)
        assert (envelope.attempt, envelope.headers) == (2, {})
        envelope.reject("enough")
        letter = DeadLetter.objects.get()
        assert letter.first_error is not None
        assert "of the new" in letter.first_error

    def test_q4_dies_without_what_was_the_old_ones(self, queue: DelayedQueue, jvm: JvmService):
        jvm.offer("key-1", "new")
        row = Message.objects.get()
        assert Message.objects.dead_letter(None, [row.id], "by an operator") == [row.id]
        letter = assert_dead(queue, "key-1", reason="by an operator")
        assert (letter.payload, letter.attempts, letter.headers) == (b"new", 0, None)
        assert DeadLetter.objects.get().last_error is None

    def test_q4_shows_nothing_of_the_old_one_in_the_admin(self, jvm, admin_client):
        url = f"/admin/delayed_queue/message/{Message.objects.get().id}/change/"
        assert "failed" in admin_client.get(url).content.decode()
        jvm.offer("key-1", "new")
        row = Message.objects.defer("headers", "last_error").get()
        assert (row.attempts, row.headers, row.last_error) == (0, None, None)
        page = admin_client.get(url)
        assert page.status_code == 200
        assert "failed" not in page.content.decode()

    def test_q4_crashes_as_a_first_delivery(self, queue: DelayedQueue, jvm: JvmService):
        jvm.offer("key-1", "new")
        assert Message.objects.count_crash("a-lease", [Message.objects.get().id], counts=True) == 1
        stored = assert_offered(queue, "key-1", "new", headers={})
        assert (stored.attempts, stored.last_error) == (1, "Crash 1: ")

    def test_q4_leased_by_them_after_it_is_new_too(self, queue, jvm, clock):
        jvm.offer("key-1", "new")
        assert jvm.poll(MINUTE) is not None
        clock.advance(MINUTE)
        envelope = leased(queue)
        assert (envelope.attempt, envelope.headers) == (1, {})
        assert envelope.delivery_type is DeliveryType.REDELIVERY

    def test_q4_written_between_a_claim_s_snapshot_and_its_lock_is_new(self, queue, jvm):
        strict = DelayedQueue(
            "my-queue", codec="text", kind=KIND, clock=queue.clock, claim="strict"
        )
        with raw_connection() as admin, admin.transaction():
            admin.execute(TRY_LOCK, {"kind": KIND})
            with calling(strict.try_poll) as claim:
                wait_until_blocked(jvm.session, claim)
                assert jvm.offer("key-1", "new") == "Updated"
                admin.execute("COMMIT AND CHAIN")
                envelope = claim.answer()
        assert envelope is not None
        assert_new(envelope)

    def test_q4_is_new_to_spark(self, queue: DelayedQueue, jvm: JvmService, clock: ManualClock):
        jvm.offer("key-1", "new")
        row_id, now = Message.objects.get().id, to_milliseconds(clock())
        bounds = {"first": row_id, "last": row_id + 1, "now": now}
        assert fetch("default", READ_RANGE, bounds)[0][8:11] == (0, None, None)
        lease = {"kind": KIND, "lease_id": "a-lease", "lease": 1000, "limit": 1, "cutoff": now}
        fetch("default", LEASE_DUE, {**lease, "now": now})
        leased_row = fetch("default", READ_LEASED, {**bounds, **lease})[0]
        assert leased_row[8:11] == (1, "a-lease", None)

    def test_q4_is_ours_again_once_we_update_it(self, queue, jvm, clock):
        jvm.offer("key-1", "new")
        clock.advance(MILLISECOND)
        assert queue.offer_or_update("key-1", "ours", headers={"b": 1}) is OfferOutcome.UPDATED
        envelope = leased(queue)
        assert (envelope.attempt, envelope.headers) == (1, {"b": 1})

    def test_q4_of_the_same_millisecond_cannot_be_told_apart(self, queue, jvm, clock):
        clock.set(clock() - MILLISECOND)
        jvm.offer("key-1", "new")
        envelope = leased(queue)
        assert (envelope.attempt, envelope.headers) == (4, HEADERS)


class TestOurWrites:
    """Each writes the version that our columns belong to."""

    def test_q4_name_their_version(self, queue: DelayedQueue, clock: ManualClock):
        for way in ways_to_write(queue):
            assert_named(way)
            clock.advance(MILLISECOND)

    def test_q4_of_jobs_too(self):
        for way in ways_to_write_a_job():
            assert_named(way)

    def test_q4_a_job_is_compared_with_the_headers_of_its_version(self, clock: ManualClock):
        job = {
            "jobId": "1",
            "topic": "orders",
            "retry": 1,
            "body": "b",
            "runAt": clock().isoformat(),
        }
        add_job(job_from(job))
        # As the other service updates it for the next offer, without the headers.
        Message.objects.update(payload=b'"c"', created_at=clock())
        changed = add_job(job_from({**job, "body": "c"}), if_exists=IfExists.UPDATE)
        assert changed.outcome is OfferOutcome.UPDATED
        assert_named("updated", {"retry": 1})


def assert_named(way: str, headers: dict[str, Any] = HEADERS) -> None:
    row = Message.objects.get()
    assert row.headers == headers, way
    assert row.version_at == row.created_at, way


def ways_to_write(queue: DelayedQueue) -> Iterator[str]:
    """Write the message with headers in each way in turn."""
    offered = partial(ScheduledMessage, "key-1", "y", headers=HEADERS)
    yield str(queue.offer_if_not_exists("key-1", "x", headers=HEADERS))
    yield str(queue.offer_or_update("key-1", "y", headers=HEADERS))
    leased(queue).reject("bad")
    yield str(queue.redrive([DeadLetter.objects.get().id]))
    leased(queue).reject("bad")
    yield str(queue.offer_batch([offered(can_update=False)]))
    yield str(queue.redrive([DeadLetter.objects.get().id], overwrite=True))
    queue.drop_message("key-1")
    yield str(queue.offer_batch([offered()]))
    with pytest.raises(ValueError, match="again"), queue.consume():
        raise ValueError("again")
    yield "restored"


def ways_to_write_a_job() -> Iterator[str]:
    job = {"jobId": "1", "topic": "orders", **HEADERS}
    yield str(add_job(job_from(job)))
    yield str(add_job(job_from({**job, "body": 1}), if_exists=IfExists.UPDATE))
    (popped,) = pop_jobs("orders", 1)
    assert bury_job("orders", "1", popped.lease_token) is Answer.DONE
    assert kick_job("orders", "1")
    yield "kicked"


def test_g1_their_new_version_stays_in_its_group_and_their_lease_takes_a_slot(queue, jvm, clock):
    """The column belongs to no version: they neither read nor reset it."""
    queue.offer_or_update("key-1", "old", group="customer")
    clock.advance(MILLISECOND)
    assert jvm.offer("key-1", "new") == "Updated"
    stored = queue.read("key-1")
    assert stored is not None
    assert (stored.payload, stored.group) == ("new", "customer")
    queue.groups.set(Groups(concurrency=1))
    assert jvm.poll(HOUR) is not None
    queue.offer_or_update("key-2", "text", group="customer")
    assert queue.try_poll() is None
