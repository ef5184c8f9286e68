"""Offers whose answer is lost: handled once, and never reported as another outcome (Q33)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import connections

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.cron.rules import CronMessage
from delayed_queue.exceptions import OutcomeUnknown
from delayed_queue.models import DeadLetter, Message
from delayed_queue.retries import Backoff
from tests.http.jobs.support import server_now
from tests.support.aiming import COMMIT, Stage
from tests.support.answers import polled, stored
from tests.support.concurrency import calling, wait_until_blocked
from tests.support.losing import OFFER, REDRIVE, Consumer, losing
from tests.support.operations import CREATED, IGNORED, PAST
from tests.support.processes import wait_until
from tests.support.proxy import Proxy

HOUR = timedelta(hours=1)


@pytest.fixture
def consumer(queue: DelayedQueue, other: psycopg.Connection[Any]) -> Consumer:
    return Consumer(other, queue.kind)


def nothing() -> None:
    """No consumer runs meanwhile."""


OFFERS: dict[str, Any] = {
    "offer_or_update": lambda queue: queue.offer_or_update("key", 1),
    "offer_if_not_exists": lambda queue: queue.offer_if_not_exists("key", 1),
    "an offer that is overdue": lambda queue: queue.offer_or_update("key", 1, PAST),
    "an offer that expires": lambda queue: queue.offer_or_update("key", 1, expires_in=HOUR),
    "an offer without delay": lambda queue: queue.offer_or_update("key", 1, delay=timedelta(0)),
    "offer_batch": lambda queue: queue.offer_batch([ScheduledMessage("key", 1)]),
    "offer_batch, not updating": lambda queue: queue.offer_batch(
        [ScheduledMessage("key", 1, can_update=False)]
    ),
}


@pytest.mark.parametrize("offer", OFFERS)
def test_q33_what_was_handled_before_its_answer_was_lost_is_not_offered_again(
    queue: DelayedQueue, proxy: Proxy, consumer: Consumer, offer: str
) -> None:
    with pytest.raises(OutcomeUnknown) as caught:
        losing(proxy, lambda: OFFERS[offer](queue), consumer.drain)

    assert caught.value.__cause__ is not None
    consumer.drain()
    assert consumer.handled == {"key": 1}


@pytest.mark.parametrize("offer", OFFERS)
def test_q33_what_is_there_with_that_content_was_stored(queue, proxy, consumer, offer):
    answer = losing(proxy, lambda: OFFERS[offer](queue), nothing)

    assert answer in (CREATED, IGNORED, [CREATED], [IGNORED])
    consumer.drain()
    assert consumer.handled == {"key": 1}


LATER: dict[str, Any] = {
    "an expiry": lambda queue: [
        queue.offer_or_update("key", 1, delay=HOUR, expires_in=timedelta(hours=3))
    ],
    "a delay": lambda queue: [queue.offer_or_update("key", 1, delay=HOUR)],
    "a delay, not updating": lambda queue: [queue.offer_if_not_exists("key", 1, delay=HOUR)],
    "a schedule": lambda queue: [queue.offer_or_update("key", 1, datetime.now(UTC) + HOUR)],
    "a batch": lambda queue: queue.offer_batch(
        [ScheduledMessage("key", 1, datetime.now(UTC) + HOUR)]
    ),
}


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("offer", LATER)
def test_q33_what_is_not_due_yet_is_offered_until_it_is_stored(
    queue: DelayedQueue, proxy: Proxy, consumer: Consumer, offer: str, stage: Stage
) -> None:
    (answer,) = losing(proxy, lambda: LATER[offer](queue), consumer.drain, stage=stage)

    assert answer is CREATED or (stage is Stage.COMMITTED and answer is IGNORED)
    consumer.drain()
    assert not consumer.handled
    consumer.drain(7_200_000)
    assert consumer.handled == {"key": 1}


@pytest.mark.parametrize("stage", Stage)
def test_q38_a_debounced_offer_is_repeated_in_its_window(queue, proxy, consumer, stage):
    queue.offer_or_update("key", 0, delay=HOUR, latest=HOUR)
    due_at = stored(queue, "key").scheduled_at

    losing(
        proxy,
        lambda: queue.offer_or_update("key", 1, delay=HOUR, latest=HOUR),
        nothing,
        stage=stage,
    )

    message = stored(queue, "key")
    assert (message.payload, message.scheduled_at) == (1, due_at)


@pytest.mark.parametrize("stage", [Stage.EXECUTED, Stage.COMMITTED])
def test_q10_a_repetition_does_not_move_the_due_time_of_a_delay(queue, proxy, stage):
    began_at = server_now()

    def a_second_passes() -> None:
        wait_until(lambda: server_now() > began_at + timedelta(seconds=1))

    losing(proxy, lambda: queue.offer_or_update("key", 1, delay=HOUR), a_second_passes, stage=stage)

    due_after = stored(queue, "key").scheduled_at_initially - began_at
    assert HOUR <= due_after < HOUR + timedelta(seconds=1)


def test_q33_of_a_batch_of_which_a_part_is_due_nothing_is_offered_twice(queue, proxy, consumer):
    later = datetime.now(UTC) + HOUR
    batch = [ScheduledMessage("now", 1), ScheduledMessage("later", 1, later)]

    with pytest.raises(OutcomeUnknown, match="1 are stored, 0 are not, and 1 may"):
        losing(proxy, lambda: queue.offer_batch(batch), consumer.drain)

    consumer.drain(7_200_000)
    assert consumer.handled == {"now": 1, "later": 1}


def test_q33_the_error_says_how_much_of_a_batch_was_stored_before(queue, proxy, consumer):
    batch = [ScheduledMessage(f"key-{each}", 1) for each in range(1003)]
    queue.offer_batch(batch[:1])
    aim = proxy.aim_at(OFFER, Stage.COMMITTED, nth=2)

    with calling(lambda: queue.offer_batch(iter(batch))) as offering:
        aim.wait()
        consumer.drain()
        proxy.cut_aimed()
        with pytest.raises(OutcomeUnknown, match="first 1000 of the batch"):
            offering.answer()

    assert set(consumer.handled.values()) == {1}


@pytest.mark.parametrize("offer", ["offer_or_update", "offer_if_not_exists"])
def test_q33_other_content_under_the_key_leaves_it_open_what_became_of_the_offer(
    queue: DelayedQueue, proxy: Proxy, consumer: Consumer, offer: str
) -> None:
    """It was stored and handled, and then another caller offered another message."""

    def handled_and_offered() -> None:
        consumer.drain()
        queue.offer_or_update("key", "other")

    with pytest.raises(OutcomeUnknown):
        losing(proxy, lambda: OFFERS[offer](queue), handled_and_offered)

    assert stored(queue, "key").payload == "other"


@pytest.mark.parametrize("stage", Stage)
def test_q1_a_key_that_was_taken_all_the_time_is_said_to_be(queue, proxy, stage):
    queue.offer_or_update("key", "old")
    written_at = server_now()
    wait_until(lambda: server_now() > written_at + timedelta(milliseconds=50))

    assert losing(proxy, lambda: OFFERS["offer_if_not_exists"](queue), nothing, stage=stage) is (
        IGNORED
    )

    assert stored(queue, "key").payload == "old"


@pytest.mark.parametrize("delay", [None, HOUR])
def test_q33_while_the_lost_try_may_still_run_nothing_is_offered(queue, proxy, other, admin, delay):
    """It waits for the holder of the row, and does not notice that its caller is gone."""
    queue.offer_or_update("key", "old")
    other.execute("BEGIN")
    other.execute("SELECT FROM delayed_queue FOR UPDATE")

    with calling(lambda: queue.offer_or_update("key", "new", delay=delay)) as offering:
        wait_until_blocked(admin, offering)
        proxy.cut()
        with pytest.raises(OutcomeUnknown):
            offering.answer()

    other.execute("COMMIT")
    wait_until(lambda: stored(queue, "key").payload == "new")
    assert proxy.answers.count("INSERT 0 1") == 1


def test_q33_a_lost_try_that_comes_to_its_end_is_waited_for(queue, proxy, other, admin, settings):
    settings.DELAYED_QUEUE = {"BACKOFF": Backoff(retries=100, initial=timedelta(milliseconds=50),
                                                 maximum=timedelta(milliseconds=50))}  # fmt: skip
    queue.offer_or_update("key", "old")
    other.execute("BEGIN")
    other.execute("SELECT FROM delayed_queue FOR UPDATE")

    with calling(lambda: queue.offer_or_update("key", "new")) as offering:
        wait_until_blocked(admin, offering)
        accepted = proxy.accepted
        proxy.cut()
        wait_until(lambda: proxy.accepted > accepted)
        other.execute("COMMIT")
        assert offering.answer() is IGNORED

    assert stored(queue, "key").payload == "new"


@pytest.mark.parametrize("stage", Stage)
def test_q33_behind_a_pooler_what_is_not_found_is_not_offered_again(queue, proxy, consumer, stage):
    """Its session is unknown, so nothing shows if the lost try is over."""
    found = connections["default"].settings_dict
    found["DISABLE_SERVER_SIDE_CURSORS"] = True
    try:
        losing(proxy, lambda: LATER["a delay"](queue), consumer.drain, stage=stage)
    except OutcomeUnknown:
        assert stage is not Stage.COMMITTED
        assert not queue.contains_message("key")
    else:
        assert stage is Stage.COMMITTED
        assert queue.contains_message("key")
    finally:
        found["DISABLE_SERVER_SIDE_CURSORS"] = False


def test_q29_an_older_letter_does_not_follow_a_newer_one_of_its_key(queue, proxy, consumer):
    """The newer was handled before the answer was lost; the older stays dead."""
    for payload in ("older", "newer"):
        queue.offer_or_update("key", payload)
        polled(queue).reject("no")
    letters = list(DeadLetter.objects.order_by("id").values_list("id", flat=True))

    with pytest.raises(OutcomeUnknown):
        losing(proxy, lambda: queue.redrive(letters), consumer.drain, pattern=REDRIVE)

    consumer.drain()
    assert consumer.handled == {"key": 1}
    assert DeadLetter.objects.get().id == letters[0]


@pytest.mark.parametrize("stage", [Stage.UNSENT, Stage.EXECUTED])
def test_q29_a_redrive_that_has_not_happened_is_made(queue, proxy, stage):
    queue.offer_or_update("key", 1)
    polled(queue).reject("no")
    letter = DeadLetter.objects.get().id

    answer = losing(proxy, lambda: queue.redrive([letter]), nothing, pattern=REDRIVE, stage=stage)

    assert answer == {letter: CREATED}


def test_c7_ticks_that_were_handled_before_the_answer_was_lost_are_not_installed_again(
    queue: DelayedQueue, proxy: Proxy, consumer: Consumer
) -> None:
    """The lost try locks the schedule's row until it ends; the row holds the last written tick."""
    ticks = [CronMessage("payload", PAST + each * HOUR) for each in range(3)]
    install = partial(queue.cron.install_tick, "hash", "daily", ticks)

    report = losing(proxy, install, consumer.drain, pattern=COMMIT)

    assert (report.created, report.skipped) == (0, 3)
    assert len(consumer.handled) == 3
    assert not Message.objects.exists()


def test_a_lost_answer_leaves_it_open_also_when_the_database_stays_away(queue, proxy, consumer):
    """Without a read of the stored row the outcome is unknown, and is raised as unknown."""
    with pytest.raises(OutcomeUnknown):
        losing(proxy, lambda: LATER["a delay"](queue), proxy.refuse)


def test_an_offer_that_nobody_disturbs_costs_one_round_trip(queue, proxy):
    queue.offer_if_not_exists("warm", 1, delay=HOUR)
    before = proxy.rounds
    queue.offer_if_not_exists("key", 1, delay=HOUR)
    assert proxy.rounds == before + 1
