"""Dropping or replacing a leased message notifies the handler that holds it (O13)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any, Final

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection
from django.test import Client

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.db.wakeups import LEASES_CHANNEL
from delayed_queue.facade import DROP_ALL_CONFIRMATION
from delayed_queue.models import Message
from delayed_queue.queue.store.inspect import DROP
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from tests.admin.support import MESSAGES, page, post, tokens
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)

# Longer than any test: no renewal notifies a handler.
LONG: Final = timedelta(hours=1)
HOUR: Final = timedelta(hours=1)
# The required maximum, with room for a busy machine.
SECONDS: Final = 1.0


def in_the_admin(action: str) -> Callable[[DelayedQueue], object]:
    def end(queue: DelayedQueue) -> None:
        client = Client()
        client.force_login(get_user_model().objects.create_superuser("operator"))
        selected = tokens(page(client, f"{MESSAGES}?state=leased"))
        post(client, MESSAGES, action, selected, confirmed="yes", reason="no use")

    return end


ENDS: Final[dict[str, Callable[[DelayedQueue], object]]] = {
    "dropped": lambda queue: queue.drop_message("key"),
    "all dropped": lambda queue: queue.drop_all_messages(DROP_ALL_CONFIRMATION),
    "replaced": lambda queue: queue.offer_or_update("key", "new", delay=HOUR),
    "replaced in a batch": lambda queue: queue.offer_batch(
        [ScheduledMessage("key", "new"), ScheduledMessage("other", "new")]
    ),
    "released by the command": lambda queue: call_command(
        "queuemessages", "release", "held", "key", stdout=StringIO()
    ),
    **{f"{each} in the admin": in_the_admin(each) for each in ("drop", "reject", "release")},
}


def is_another(envelope: Envelope) -> bool:
    """True for the replacement of the message, or its next delivery."""
    return bool(envelope.payload == "new" or envelope.attempt > 1)


class Held:
    """Handlers that hold a message until the test releases them."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.told = threading.Event()
        self.left = threading.Event()
        self.seen: list[Any] = []

    async def awaiting(self, envelope: Envelope) -> None:
        self.seen.append(envelope.payload)
        if is_another(envelope):
            return
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert envelope.is_cancelled
            self.told.set()
            await asyncio.to_thread(self.left.wait, 20)

    def asking(self, envelope: Envelope) -> None:
        self.seen.append(envelope.payload)
        if not is_another(envelope):
            self.begun.set()
            wait_until(lambda: envelope.is_cancelled)
            self.told.set()


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def queue() -> DelayedQueue:
    queue = DelayedQueue("held")
    queue.offer_or_update("key", "old")
    return queue


def holder(function: Callable[[Envelope], Any], **options: Any) -> Worker:
    return worker_with(handler_of("held", function, lease=options.pop("lease", LONG)), **options)


@pytest.mark.parametrize(
    ("manner", "end"), [("asking", "dropped"), *(("awaiting", each) for each in ENDS)]
)
def test_its_handler_is_told_within_a_second(queue, held, manner, end):
    held.left.set()
    worker = holder(getattr(held, manner))
    with running(worker):
        assert held.begun.wait(20)
        ENDS[end](queue)
        assert held.told.wait(SECONDS)
        wait_until(lambda: worker.counts.lost == 1)
    assert worker.counts.failed == 0


@pytest.mark.parametrize("manner", ["offer_or_update", "offer_batch"])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_handler_that_offers_its_own_key_anew_goes_on(
    queue: DelayedQueue, manner: str, *, is_async: bool
) -> None:
    """The handler's own offer ended its lease; no other caller did."""
    ended: list[bool] = []

    def again() -> None:
        if manner == "offer_batch":
            queue.offer_batch([ScheduledMessage("key", "new", datetime.now(UTC) + HOUR)])
        else:
            queue.offer_or_update("key", "new", delay=HOUR)

    def asking(envelope: Envelope) -> None:
        again()
        wait_until(lambda: envelope.lease_lost)
        ended.append(envelope.is_cancelled)

    async def awaiting(envelope: Envelope) -> None:
        await sync_to_async(again)()
        while not envelope.lease_lost:
            await asyncio.sleep(0)
        await asyncio.to_thread(round, 1)  # at a point where it would be cancelled
        ended.append(envelope.is_cancelled)

    worker = holder(awaiting if is_async else asking)
    with running(worker):
        wait_until(lambda: worker.counts.lost == 1)
    assert ended == [False]
    assert Message.objects.get().payload == b'"new"'


@pytest.mark.parametrize("end", ["dropped", "replaced"])
@pytest.mark.parametrize("manner", ["offer_or_update", "offer_batch"])
def test_one_whose_own_offer_changed_nothing_is_told_like_any_other(queue, held, manner, end):
    """It keeps the lease until others end it, as they do here."""
    stored = queue.read("key")
    assert stored is not None

    def asking(envelope: Envelope) -> None:
        same = ScheduledMessage("key", "old", stored.scheduled_at_initially)
        if manner == "offer_batch":
            queue.offer_batch([same])
        else:
            queue.offer_or_update("key", "old", same.schedule_at)
        held.asking(envelope)

    worker = holder(asking)
    with running(worker):
        assert held.begun.wait(20)
        ENDS[end](queue)
        assert held.told.wait(SECONDS)
        wait_until(lambda: worker.counts.lost == 1)


def test_it_is_told_only_when_that_is_committed(queue, held, other):
    held.left.set()
    with running(holder(held.awaiting)):
        assert held.begun.wait(20)
        with other.transaction(force_rollback=True):
            assert other.execute(DROP, {"key": "key", "kind": queue.kind}).rowcount == 1
        assert not held.told.is_set()
        queue.drop_message("key")
        assert held.told.wait(SECONDS)


def test_what_is_put_in_its_place_is_handled_while_the_old_one_ends(queue, held):
    first, second = holder(held.awaiting), holder(held.awaiting)
    with running(first):
        assert held.begun.wait(20)
        with running(second):
            queue.offer_or_update("key", "new")
            assert held.told.wait(SECONDS)
            wait_until(lambda: first.counts.done + second.counts.done == 1)
            assert not Message.objects.exists()
            held.left.set()
            wait_until(lambda: first.counts.lost == 1)
    assert held.seen == ["old", "new"]
    assert second.counts.lost == 0


def test_what_has_not_begun_does_not_begin(queue, held, caplog):
    """Its task exists already, but another handler blocks the loop."""

    async def standing(envelope: Envelope) -> None:
        held.seen.append(envelope.payload)
        held.begun.set()
        held.left.wait(20)

    queue.offer_or_update("later", "later")
    worker = holder(standing, async_concurrency=2)
    with running(worker):
        assert held.begun.wait(20)
        wait_until(lambda: Message.objects.filter(lease_id__isnull=False).count() == 2)
        queue.drop_message("later")
        wait_until(lambda: "event=lease_lost queue=held key=later" in caplog.text)
        held.left.set()
        wait_until(lambda: worker.counts == Counts(done=1, lost=1))
    assert held.seen == ["old"]


@pytest.mark.parametrize("manner", ["async", "sync"])
def test_one_that_ends_at_that_moment_is_settled_once(manner: str) -> None:
    """It was either handled, or dropped before; each slot is free again."""
    queue = DelayedQueue("held")
    for turn in range(8):
        begun, barrier = threading.Event(), threading.Barrier(2, timeout=20)

        def meet(begun: threading.Event = begun, barrier: threading.Barrier = barrier) -> None:
            begun.set()
            barrier.wait()

        def function(envelope: Envelope, meet: Callable[[], None] = meet) -> None:
            meet()

        async def awaiting(envelope: Envelope, meet: Callable[[], None] = meet) -> None:
            await asyncio.to_thread(meet)

        queue.offer_or_update("key", turn)
        worker = holder(
            awaiting if manner == "async" else function, concurrency=1, async_concurrency=1,
            max_messages=1,
        )  # fmt: skip
        with running(worker) as thread:
            assert begun.wait(20)
            barrier.wait()
            queue.drop_message("key")
            thread.join(20)
        assert worker.counts in (Counts(done=1), Counts(lost=1))
        assert not Message.objects.exists()


def test_without_notifications_a_renewal_tells(queue, held, settings):
    settings.DELAYED_QUEUE = {"NOTIFY": False}
    held.left.set()
    with running(holder(held.awaiting, lease=timedelta(milliseconds=600))):
        assert held.begun.wait(20)
        queue.drop_message("key")
        assert held.told.wait(20)


def test_one_that_nobody_announced_is_found_when_the_listener_is_back(queue, held, other):
    held.left.set()
    with running(holder(held.awaiting)):
        assert held.begun.wait(20)
        other.execute("DELETE FROM delayed_queue")
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> ALL (%s)",
            [[other.info.backend_pid, connection.connection.info.backend_pid]],
        )
        assert held.told.wait(20)


def test_one_that_nobody_announced_is_found_after_a_claim_that_lost_its_connection(
    queue: DelayedQueue, held: Held, other: psycopg.Connection[Any]
) -> None:
    held.left.set()

    def claims_that_wait() -> list[Any]:
        # On another connection: a transaction sees the same sessions until it ends.
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                "AND datname = current_database() AND (query LIKE '%UPDATE delayed_queue%' "
                """OR query LIKE '%"scheduledAt" - (SELECT now FROM clock)%')"""
            )
            return list(cursor.fetchall())

    with running(holder(held.awaiting)):
        assert held.begun.wait(20)
        with other.transaction():
            other.execute("LOCK TABLE delayed_queue IN ACCESS EXCLUSIVE MODE")
            wait_until(claims_that_wait)
            other.execute("DELETE FROM delayed_queue")
            for each in claims_that_wait():
                other.execute("SELECT pg_terminate_backend(%s)", each)
        assert held.told.wait(20)


class TestWhatIsSaid:
    @pytest.fixture
    def heard(self, other: psycopg.Connection[Any]) -> Callable[[], list[str]]:
        other.execute(f"LISTEN {LEASES_CHANNEL}")

        def heard() -> list[str]:
            # The answer to this brings the notifications committed before it.
            other.execute("SELECT")
            return [each.payload for each in other.notifies(timeout=0.05)]

        return heard

    def test_nothing_where_nothing_is_leased(self, queue, heard):
        queue.offer_or_update("key", "new")
        queue.offer_batch([ScheduledMessage("key", "newer"), ScheduledMessage("second", 1)])
        queue.drop_message("key")
        queue.drop_all_messages(DROP_ALL_CONFIRMATION)
        assert heard() == []

    def test_nothing_by_who_holds_it(self, queue, heard):
        held = queue.try_poll()
        assert held is not None
        held.release()
        assert queue.try_poll_many(10).acknowledge() == 1
        assert heard() == []

    def test_an_offer_that_changes_nothing_says_nothing(self, queue, heard):
        at = queue.read("key").scheduled_at_initially
        assert queue.try_poll() is not None
        queue.offer_or_update("key", "old", at)
        assert heard() == []
