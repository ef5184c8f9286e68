"""Rejecting and redriving, seen from other connections (Q28, Q29)."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import Any, Final

import psycopg
import pytest

from delayed_queue import DelayedQueue, OfferOutcome, ScheduledMessage
from delayed_queue.models import DeadLetter, Message
from delayed_queue.queue.store.dead_letters import PRUNE_DEAD_LETTERS, REDRIVE, family_params
from delayed_queue.queue.store.settle import DEAD_LETTER
from tests.support.answers import only_row, polled, stored
from tests.support.concurrency import calling, raw_connection, together, wait_until_blocked
from tests.support.processes import wait_until
from tests.support.rivals import insert

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED
# In one statement, so both counts have the same snapshot.
COUNTS: Final = """
SELECT (SELECT count(*) FROM delayed_queue), (SELECT count(*) FROM delayed_queue_dead_letter)
"""


def bury(queue: DelayedQueue, *keys: str) -> list[int]:
    """Offer, lease and reject the keys; return the ids of their dead letters in that order."""
    for key in keys:
        queue.offer_or_update(key, "dead")
        assert polled(queue).reject("no")
    return list(DeadLetter.objects.order_by("id").values_list("id", flat=True))


def redrive(
    connection: psycopg.Connection[Any], ids: list[int], *, overwrite: bool = False
) -> list[Any]:
    """Redrive on the connection, and leave the transaction to the caller."""
    params = {"ids": ids, "overwrite": overwrite, "kind": None, "now": None}
    params |= family_params()
    return connection.execute(REDRIVE, params).fetchall()


def test_q28_a_message_is_always_in_the_queue_or_dead_never_both_never_neither(queue: DelayedQueue):
    """As two readers see it while fifty messages are rejected and redriven."""
    queue.offer_batch([ScheduledMessage(f"key-{each}", None) for each in range(50)])
    is_over = threading.Event()
    are_reading = threading.Barrier(3, timeout=20)

    def read() -> Counter[tuple[int, int]]:
        seen: Counter[tuple[int, int]] = Counter()
        with raw_connection() as connection:
            are_reading.wait()
            while not is_over.is_set():
                seen[only_row(connection.execute(COUNTS))] += 1
        return seen

    def move() -> Counter[tuple[int, int]]:
        are_reading.wait()
        try:
            while envelope := queue.try_poll():
                assert envelope.reject("no")
            assert queue.redrive_all() == {CREATED: 50}
        finally:
            is_over.set()
        return Counter()

    _, *seen = together([move, read, read])

    assert {sum(counts) for each in seen for counts in each} == {50}
    assert all(len(each) > 2 for each in seen), "the readers saw almost nothing"


def test_q28_a_burial_is_seen_whole_or_not_at_all(queue, other, admin):
    queue.offer_or_update("key", None)
    envelope = polled(queue)
    params = {
        "ids": [envelope.message_id], "lease_id": envelope.lease_id, "reason": "no",
        "error": None, "now": None, "fingerprint": "",
    }  # fmt: skip

    with other.transaction():
        other.execute(DEAD_LETTER, params)
        assert admin.execute(COUNTS).fetchone() == (1, 0)
    assert admin.execute(COUNTS).fetchone() == (0, 1)


@pytest.mark.parametrize(
    ("overwrite", "end", "expected"),
    [
        (False, "COMMIT", IGNORED),
        (True, "COMMIT", UPDATED),
        (False, "ROLLBACK", CREATED),
        (True, "ROLLBACK", CREATED),
    ],
)
def test_q29_a_redrive_waits_for_an_offer_of_its_key(queue, other, admin, overwrite, end, expected):
    """Only ``overwrite`` replaces a newer message; otherwise the dead letter stays."""
    [letter] = bury(queue, "key")
    other.execute("BEGIN")
    insert(other, queue)

    with calling(partial(queue.redrive, [letter], overwrite=overwrite)) as redriving:
        wait_until_blocked(admin, redriving)
        other.execute(end)
        assert redriving.answer() == {letter: expected}

    assert stored(queue, "key").payload == ("new" if expected is IGNORED else "dead")
    assert DeadLetter.objects.count() == (1 if expected is IGNORED else 0)


@pytest.mark.parametrize(("end", "expected"), [("COMMIT", UPDATED), ("ROLLBACK", CREATED)])
def test_q29_an_offer_waits_for_a_redrive_of_its_key(queue, other, admin, end, expected):
    """The offer is newer, and stays."""
    letters = bury(queue, "key")
    other.execute("BEGIN")
    redrive(other, letters)

    with calling(lambda: queue.offer_or_update("key", "new")) as offering:
        wait_until_blocked(admin, offering)
        other.execute(end)
        assert offering.answer() is expected

    assert stored(queue, "key").payload == "new"
    assert DeadLetter.objects.count() == (0 if end == "COMMIT" else 1)


def test_q29_letters_that_are_being_redriven_are_skipped_not_waited_for(impatient, other):
    first, second = bury(impatient, "first", "second")

    with other.transaction():
        redrive(other, [first])
        assert impatient.redrive([first, second]) == {second: CREATED}

    assert impatient.redrive([first, second]) == {}
    assert Message.objects.count() == 2


def test_q29_redrives_of_the_same_letters_put_each_back_once(queue: DelayedQueue):
    """By four threads, in opposite orders."""
    letters = bury(queue, *(f"key-{each}" for each in range(60)))

    def redrive_one_way(thread: int) -> dict[int, OfferOutcome]:
        return queue.redrive(letters if thread % 2 else letters[::-1])

    answers = together([partial(redrive_one_way, thread) for thread in range(4)])

    assert Counter(id_ for answer in answers for id_ in answer) == Counter(letters)
    assert {outcome for answer in answers for outcome in answer.values()} == {CREATED}
    assert (Message.objects.count(), DeadLetter.objects.count()) == (60, 0)


def test_q29_redrives_of_two_letters_of_one_key_put_one_back(queue, other, admin):
    """The second redrive finds the key alive, and leaves its letter dead."""
    first, second = bury(queue, "key", "key")
    other.execute("BEGIN")
    redrive(other, [first])

    with calling(lambda: queue.redrive([second])) as redriving:
        wait_until_blocked(admin, redriving)
        other.execute("COMMIT")
        assert redriving.answer() == {second: IGNORED}

    assert list(DeadLetter.objects.values_list("id", flat=True)) == [second]


def test_q29_pruning_passes_letters_that_are_being_redriven(queue, other):
    """Neither waits for the other, and no letter is lost."""
    first, _ = bury(queue, "first", "second")
    params = {"kind": queue.kind, "now": 10**14, "age": 0, "limit": 10}

    with other.transaction(), raw_connection() as pruner:
        redrive(other, [first])
        pruner.execute("SET lock_timeout = '200ms'")
        assert pruner.execute(PRUNE_DEAD_LETTERS, params).rowcount == 1

    wait_until(lambda: not DeadLetter.objects.exists())
    assert queue.read("first") is not None


def test_q29_redriving_all_ends_though_every_message_dies_again(queue: DelayedQueue):
    """A handler that rejects at once does not make the call endless."""
    queue.offer_batch([ScheduledMessage(f"key-{each}", None) for each in range(2500)])
    is_over = threading.Event()

    def reject_all() -> None:
        while not is_over.is_set():
            batch = queue.try_poll_many(500)
            Message.objects.dead_letter(batch.lease_id, [each.message_id for each in batch], "no")

    def redrive_all() -> Counter[OfferOutcome]:
        try:
            wait_until(lambda: DeadLetter.objects.count() == 2500)
            return queue.redrive_all()
        finally:
            is_over.set()

    _, outcomes = together([reject_all, redrive_all])
    assert outcomes == {CREATED: 2500}
