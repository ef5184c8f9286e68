"""Bulk runs, batch by batch: their letters, speed and stops (O9, O10)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.exceptions import InvalidConfiguration, NoSuchLetters, RunInProgress
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import BulkRun, DeadLetter, Message
from delayed_queue.queue.bulk import BulkPlan, step, switch_run
from delayed_queue.queue.fingerprints import fingerprint
from tests.support.factories import DeadLetterFactory, MessageFactory, from_now

pytestmark = pytest.mark.django_db
KIND = "orders|json"


def run_of(run_id: int) -> BulkRun:
    return BulkRun.objects.get(pk=run_id)


def begin(action: str = "redrive", **options: Any) -> int:
    return BulkPlan(action, KIND, **options).start()


def carry_out() -> None:
    """Run every due step."""
    while step():
        pass


def hurry() -> None:
    """Make each run due, with nothing to catch up."""
    BulkRun.objects.update(next_at=from_now(seconds=0))


def test_a_group_is_redriven_and_the_others_stay():
    DeadLetterFactory.create_batch(3, fingerprint="a")
    DeadLetterFactory.create_batch(2, fingerprint="b")
    run_id = begin(fingerprint="a")
    carry_out()
    run = run_of(run_id)
    assert (run.state, run.done, run.total, run.skipped) == ("done", 3, 3, 0)
    assert (Message.objects.count(), DeadLetter.objects.count()) == (3, 2)
    assert run.ended_at is not None


def test_a_queue_is_dropped_by_the_beginning_of_the_reason_up_to_a_limit():
    DeadLetterFactory.create_batch(4, reason="refused: card")
    DeadLetterFactory.create_batch(2, reason="timed out")
    run_id = begin("drop", reason="refused", limit=3)
    carry_out()
    assert (run_of(run_id).done, run_of(run_id).total) == (3, 3)
    assert DeadLetter.objects.filter(reason="refused: card").count() == 1
    assert not Message.objects.exists()


def test_what_dies_after_the_preview_is_not_touched():
    DeadLetterFactory.create()
    begin()
    late = DeadLetterFactory.create(died_at=from_now(minutes=-30))
    carry_out()
    assert list(DeadLetter.objects.all()) == [late]


def test_of_a_key_the_newest_is_redriven_and_one_in_use_is_left():
    for payload in (b"1", b"2"):
        DeadLetterFactory.create(key="twice", payload=payload)
    DeadLetterFactory.create(key="used")
    MessageFactory.create(key="used")
    run_id = begin()
    carry_out()
    assert bytes(Message.objects.get(key="twice").payload) == b"2"
    assert (run_of(run_id).done, run_of(run_id).skipped) == (1, 2)


def test_a_pace_is_kept():
    DeadLetterFactory.create_batch(7)
    run_id = begin(pace=3)
    carry_out()
    assert run_of(run_id).done == 3
    hurry()
    carry_out()
    assert (run_of(run_id).done, run_of(run_id).state) == (6, "running")


def handle(*rejected: bool) -> None:
    """Handle one message each: acknowledge it, or reject it with "no"."""
    for is_rejected in rejected:
        envelope = DelayedQueue("orders").try_poll()
        assert envelope is not None
        assert envelope.reject("no") if is_rejected else envelope.acknowledge()


@pytest.mark.parametrize("of_group", [True, False])
def test_a_canary_that_dies_again_as_before_stops_the_run(of_group: bool):
    failure = fingerprint("no", None)
    DeadLetterFactory.create_batch(5, fingerprint=failure)
    run_id = begin(canary=2, fingerprint=failure if of_group else None)
    carry_out()
    assert (run_of(run_id).done, Message.objects.count()) == (2, 2)
    handle(False, True)
    hurry()
    carry_out()
    run = run_of(run_id)
    assert (run.state, run.note) == (
        "stopped",
        "1 of the 2 redriven first died of the same failure.",
    )
    assert DeadLetter.objects.count() == 4


@pytest.mark.parametrize(
    ("died_of", "deaths", "rejected"), [("yes", 1, [True, True]), ("no", 2, [True, False])]
)
def test_a_canary_that_dies_of_something_else_or_too_seldom_lets_the_rest_go(
    died_of: str, deaths: int, rejected: list[bool]
):
    DeadLetterFactory.create_batch(5, fingerprint=fingerprint(died_of, None))
    run_id = begin(canary=2, canary_deaths=deaths)
    carry_out()
    handle(*rejected)
    hurry()
    carry_out()
    assert (run_of(run_id).state, run_of(run_id).done) == ("done", 5)


def test_a_canary_that_lives_lets_the_rest_go():
    DeadLetterFactory.create_batch(5)
    run_id = begin(canary=2)
    carry_out()
    hurry()
    carry_out()
    assert run_of(run_id).done == 2, "it continued while the canary was in the queue"
    assert DelayedQueue("orders").try_poll_many(2).acknowledge() == 2
    hurry()
    carry_out()
    assert (run_of(run_id).state, run_of(run_id).done) == ("done", 5)


def test_a_range_of_keys_is_compared_byte_by_byte():
    for key in ("a", "b%", "b_1", "bz", "c", "B"):
        DeadLetterFactory.create(key=key)
    plan = BulkPlan("drop", KIND, key_from="b", key_before="c")
    assert plan.preview().meant == 3
    plan.start()
    carry_out()
    assert sorted(DeadLetter.objects.values_list("key", flat=True)) == ["B", "a", "c"]


@pytest.mark.parametrize("fingerprint", [None, "f"])
def test_o23_a_run_takes_the_letters_of_one_group_of_messages(fingerprint: str | None):
    for group in ("acme", "acme", "other", None):
        DeadLetterFactory.create(group=group, fingerprint="f")
    plan = BulkPlan("drop", KIND, fingerprint, group="acme")
    assert plan.preview().meant == 2
    assert {each.group for each in plan.letters()} == {"acme"}
    plan.start()
    carry_out()
    assert set(DeadLetter.objects.values_list("group", flat=True)) == {"other", None}


def test_o23_the_newest_letter_of_a_key_is_that_of_the_group():
    for group in ("acme", "other"):
        DeadLetterFactory.create(key="same", group=group)
    begin(group="acme")
    carry_out()
    assert list(DeadLetter.objects.values_list("group", flat=True)) == ["other"]


@pytest.mark.parametrize("of_group", [True, False])
def test_a_span_of_time_is_both_ends_included(of_group: bool):
    deaths = [from_now(minutes=-each) for each in (50, 40, 30, 20)]
    letters = [DeadLetterFactory.create(died_at=at, fingerprint="a") for at in deaths]
    since, until = map(to_milliseconds, deaths[1:3])
    begin(fingerprint="a" if of_group else None, since=since, until=until)
    carry_out()
    assert list(DeadLetter.objects.order_by("died_at")) == [letters[0], letters[3]]


def test_a_run_is_spread_over_a_time():
    DeadLetterFactory.create_batch(4)
    run_id = begin(over=timedelta(hours=2))
    assert step()
    assert not step()
    run = run_of(run_id)
    assert (run.pace, run.done) == (4 / 7200, 1)
    assert run.next_at - run.created_at >= timedelta(minutes=29)


def test_a_turn_that_came_late_is_caught_up():
    DeadLetterFactory.create_batch(7)
    run_id = begin(pace=2)
    BulkRun.objects.update(next_at=from_now(seconds=-60))
    carry_out()
    assert run_of(run_id).done == 4, "a second is caught up, not a minute"


def test_letters_are_read_without_a_change_page_by_page():
    letters = [*DeadLetterFactory.create_batch(3, key="same"), DeadLetterFactory.create()]
    DeadLetterFactory.create(kind="other|json")
    assert set(BulkPlan("export", KIND).letters()) == set(letters)
    assert len(list(BulkPlan("export", KIND, limit=2).letters())) == 2
    assert DeadLetter.objects.count() == 5


def test_pause_resume_and_cancel():
    DeadLetterFactory.create_batch(2)
    run_id = begin(pace=1)
    assert step()
    assert switch_run(run_id, "pause")
    assert not switch_run(run_id, "pause")
    hurry()
    assert not step()
    assert switch_run(run_id, "resume")
    assert step()
    assert switch_run(run_id, "cancel")
    assert not switch_run(run_id, "resume")
    assert run_of(run_id).state == "cancelled"


@pytest.mark.parametrize(
    ("one", "other", "is_refused"),
    [("a", "a", True), ("a", None, True), (None, "a", True), (None, None, True), ("a", "b", False)],
)
def test_a_second_run_over_the_same_letters_is_refused(one, other, is_refused):
    for each in ("a", "b"):
        DeadLetterFactory.create(fingerprint=each)
    begin(fingerprint=one)
    if is_refused:
        with pytest.raises(RunInProgress):
            begin(fingerprint=other)
        carry_out()
        DeadLetterFactory.create(fingerprint="a")
    assert begin(fingerprint=other)


@pytest.mark.parametrize(
    "options", [{"pace": 0}, {"pace": 10**6}, {"pace": 1.5}, {"limit": 0}, {"canary": 1001},
                {"action": "burn"}, {"action": "drop", "canary": 1}, {"canary_deaths": 2},
                {"over": timedelta(0)}, {"over": timedelta(hours=1), "pace": 1},
                {"action": "export"}]
)  # fmt: skip
def test_what_no_run_can_be_is_refused(options: dict[str, Any]):
    with pytest.raises(InvalidConfiguration):
        begin(**options)


def test_a_run_over_nothing_is_refused():
    with pytest.raises(NoSuchLetters):
        begin(fingerprint="a")
