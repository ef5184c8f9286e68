"""O12: workers delete dead letters past their retention, and no others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.conf import LazySettings

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter, Limit
from delayed_queue.worker.engine.chores import Chores
from tests.support.concurrency import raw_connection
from tests.support.factories import DeadLetterFactory, from_now
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
DAYS_31 = from_now(days=-31)


@pytest.fixture
def chores() -> Iterator[Chores]:
    made = Chores("default", first_prune=0)
    yield made
    made.stop()


def is_over() -> bool:
    """True if the started thread has ended."""
    return all(each.name != "chores" for each in threading.enumerate())


def letters() -> list[tuple[str, str]]:
    return sorted(DeadLetter.objects.values_list("kind", "key"))


def test_what_is_older_than_the_default_goes_in_every_queue(chores: Chores) -> None:
    for kind in ("orders|json", "bills|json"):
        DeadLetterFactory.create(kind=kind, key="old", died_at=DAYS_31)
        DeadLetterFactory.create(kind=kind, key="young", died_at=from_now(days=-29))
    chores.look()
    wait_until(lambda: letters() == [("bills|json", "young"), ("orders|json", "young")])


def test_more_than_a_batch_goes_in_one_turn(chores: Chores) -> None:
    DeadLetterFactory.create_batch(2100, died_at=DAYS_31)
    DeadLetterFactory.create(key="young")
    chores.look()
    wait_until(lambda: [key for _, key in letters()] == ["young"])


@pytest.mark.parametrize(
    ("retention", "left"), [(timedelta(days=60), {"b"}), (timedelta(days=365), {"a", "b"})]
)
def test_as_long_as_the_setting_says(chores, settings, retention, left):
    settings.DELAYED_QUEUE = {"DEAD_LETTER_RETENTION": retention}
    DeadLetterFactory.create(key="a", died_at=from_now(days=-90))
    DeadLetterFactory.create(key="b", died_at=DAYS_31)
    chores.look()
    wait_until(is_over)
    assert {key for _, key in letters()} == left


def test_none_keeps_them(chores: Chores, settings: LazySettings) -> None:
    settings.DELAYED_QUEUE = {"DEAD_LETTER_RETENTION": None}
    DeadLetterFactory.create(key="a", died_at=from_now(days=-3000))
    chores.look()
    wait_until(is_over)
    assert {key for _, key in letters()} == {"a"}


def test_letters_that_somebody_holds_are_left_for_the_next_turn(chores: Chores) -> None:
    """A redrive has locked them; the purge does not wait for it."""
    held = DeadLetterFactory.create(key="held", died_at=DAYS_31)
    DeadLetterFactory.create(key="free", died_at=DAYS_31)
    with raw_connection() as other, other.transaction():
        other.execute("SELECT FROM delayed_queue_dead_letter WHERE id = %s FOR UPDATE", [held.pk])
        chores.look()
        wait_until(lambda: [key for _, key in letters()] == ["held"])


def test_limits_that_hold_nothing_back_any_more_go(chores: Chores) -> None:
    queue = DelayedQueue("orders")
    queue.groups.limit("a", concurrency=2)
    for group, spent_until in (("spent", 1.0), ("spending", 2.0**60)):
        Limit.objects.create(kind=queue.kind, group=group, spent_until=spent_until)
    chores.look()
    wait_until(lambda: {each.group for each in Limit.objects.all()} == {"a", "spending"})
