"""Claims by group against each other, and against changes of leases (G2, G3, G5)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from delayed_queue import DelayedQueue, Groups, ScheduledMessage
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.queue.store.groups import TAKE_TURN
from delayed_queue.queue.store.settle import EXTEND
from tests.queue.races.conftest import LIMITS
from tests.support.concurrency import calling, raw_connection, together, wait_until_blocked
from tests.support.rivals import update

EXPIRE = """
UPDATE delayed_queue SET "scheduledAt" = "scheduledAtInitially" WHERE "lockUuid" IS NOT NULL
"""


IDLE_TIMEOUT = "idle_in_transaction_session_timeout"
RECORD_TIMEOUT = """
CREATE TABLE timeouts (value text);
CREATE FUNCTION record_timeout() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO timeouts VALUES (current_setting('idle_in_transaction_session_timeout'));
    RETURN NULL;
END $$;
CREATE TRIGGER record_timeout AFTER UPDATE ON delayed_queue
FOR EACH ROW EXECUTE FUNCTION record_timeout();
"""


def offer(queue: DelayedQueue, *keys: str) -> None:
    queue.offer_batch([ScheduledMessage(key, None, group=key[0]) for key in keys])


def keys(queue: DelayedQueue, limit: int = 10) -> list[str]:
    return [each.key for each in queue.try_poll_many(limit)]


def take_turn(other: psycopg.Connection[Any], queue: DelayedQueue, idle: int | None = None) -> None:
    other.execute(TAKE_TURN, {"kind": queue.kind, "idle": idle})


@pytest.mark.parametrize(("rules", "most"), LIMITS)
def test_of_ten_pollers_at_once_none_exceeds_the_limit(queue, rules, most):
    for number in range(5):
        queue.groups.set(rules)
        group = "abcde"[number]
        offer(queue, *(f"{group}{each}" for each in range(20)))
        pollers: list[Callable[[], list[str]]] = [
            partial(keys, DelayedQueue(queue.name), 2) for _ in range(10)
        ]
        found = [key for each in together(pollers) for key in each]
        assert len(found) == len(set(found)) == most
        queue.drop_all_messages("Yes, please, I know what I'm doing!")
        queue.groups.clear()
        connection.cursor().execute("DELETE FROM delayed_queue_limit")


def test_a_poll_waits_for_one_that_is_being_made_and_sees_what_it_leased(queue, other, admin):
    """Its read has a snapshot later than the lock."""
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "a2")
    with other.transaction():
        take_turn(other, queue)
        with calling(partial(keys, queue)) as polling:
            wait_until_blocked(admin, polling)
            other.execute(
                """UPDATE delayed_queue SET "lockUuid" = 'other', "scheduledAt" = 2^60
                WHERE "pKey" = 'a1'"""
            )
            other.execute("COMMIT; BEGIN")
            assert polling.answer() == []


def test_a_limit_that_is_set_while_a_poll_waits_holds_for_it(queue, other, admin):
    queue.groups.set(Groups(concurrency=5))
    offer(queue, "a1", "a2")
    with other.transaction():
        take_turn(other, queue)
        with calling(partial(keys, queue)) as polling:
            wait_until_blocked(admin, polling)
            DelayedQueue(queue.name).groups.set(Groups(concurrency=1))
            other.execute("COMMIT; BEGIN")
            assert polling.answer() == ["a1"]


def test_a_lease_that_is_extended_while_it_is_taken_again_stays_one(queue, other):
    """The extension is uncommitted: the claim skips the message, and its slot is used."""
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "a2")
    (held,) = queue.try_poll_many(10)
    connection.cursor().execute(EXPIRE)
    extension = {
        "ids": [held.message_id], "lease_ids": [held.lease_id], "lease": 60_000, "now": None
    }  # fmt: skip
    with other.transaction():
        assert len(other.execute(EXTEND, extension).fetchall()) == 1
        assert keys(queue) == []
    assert keys(queue) == []
    assert held.acknowledge()
    assert keys(queue) == ["a2"]


def test_a_lease_that_was_taken_again_cannot_be_extended(queue, admin):
    """The claim is uncommitted: the extension waits, and finds another lease."""
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "a2")
    (held,) = queue.try_poll_many(10)
    connection.cursor().execute(EXPIRE)
    with transaction.atomic():
        assert keys(queue) == ["a1"]
        with calling(held.extend) as extending:
            wait_until_blocked(admin, extending)
            connection.cursor().execute("COMMIT")
            assert extending.answer() is False
            connection.cursor().execute("BEGIN")


@pytest.mark.parametrize("rules", [Groups(concurrency=1), Groups(order="fifo")])
def test_a_slot_is_free_when_what_ends_its_lease_has_committed(queue, other, rules):
    queue.groups.set(rules)
    offer(queue, "a1", "a2")
    assert keys(queue) == ["a1"]
    with other.transaction():
        other.execute("""DELETE FROM delayed_queue WHERE "pKey" = 'a1'""")
        assert keys(queue) == []
    assert keys(queue) == ["a2"]


@pytest.mark.parametrize(
    ("rules", "found"), [(Groups(concurrency=1), ["a2"]), (Groups(order="fifo"), [])]
)
def test_a_message_that_is_being_replaced_is_passed_over_but_not_in_order(
    impatient: DelayedQueue, other: psycopg.Connection[Any], rules: Groups, found: list[str]
):
    impatient.groups.set(rules)
    offer(impatient, "a1", "a2")
    with other.transaction():
        update(other, impatient, "a1", schedule_at=0, group="a")
        assert keys(impatient) == found


@pytest.mark.parametrize("rules", [Groups(concurrency=1), Groups(order="fifo")])
def test_a_group_of_which_somebody_holds_the_first_does_not_keep_the_turn(impatient, other, rules):
    impatient.groups.set(rules)
    offer(impatient, "a1", "b1", "b2")
    with other.transaction():
        update(other, impatient, "a1", schedule_at=0, group="a")
        assert keys(impatient, 1) == ["b1"]
        assert keys(impatient, 1) == []
    assert keys(impatient, 1) == ["a1"]


def test_without_a_group_one_that_somebody_holds_is_passed_over(impatient, other):
    impatient.groups.set(Groups(concurrency=1))
    for key in ("1", "2"):
        impatient.offer_or_update(key, None)
    with other.transaction():
        other.execute("""SELECT FROM delayed_queue WHERE "pKey" = '1' FOR UPDATE""")
        assert keys(impatient, 1) == ["2"]
        assert keys(impatient, 1) == []
    assert keys(impatient, 1) == ["1"]


@pytest.mark.parametrize("is_fair", [True, False])
def test_of_those_without_a_group_one_behind_a_thousand_that_somebody_holds_is_found(
    impatient: DelayedQueue, other: psycopg.Connection[Any], is_fair: bool
):
    impatient.groups.set(Groups(concurrency=1, fair=is_fair))
    impatient.offer_batch([ScheduledMessage(f"{each}", None) for each in range(1000)])
    impatient.offer_or_update("behind", None)
    with other.transaction():
        other.execute("""SELECT FROM delayed_queue WHERE "pKey" <> 'behind' FOR UPDATE""")
        assert keys(impatient) == ["behind"]


def test_a_killed_holder_gives_up_its_turn(queue: DelayedQueue, admin: psycopg.Connection[Any]):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1")
    with raw_connection() as holder:
        holder.execute("BEGIN")
        take_turn(holder, queue)
        with calling(partial(keys, queue)) as polling:
            wait_until_blocked(admin, polling)
            admin.execute("SELECT pg_terminate_backend(%s)", [holder.info.backend_pid])
            assert polling.answer() == ["a1"]


def test_a_suspended_holder_loses_its_turn(queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1")
    with raw_connection() as holder:
        holder.execute("BEGIN")
        take_turn(holder, queue, idle=50)
        assert keys(queue) == ["a1"]


@pytest.mark.parametrize(("is_callers", "timeout"), [(False, "5s"), (True, "0")])
def test_a_claim_limits_how_long_its_own_transaction_is_idle(queue, is_callers, timeout):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1")
    cursor = connection.cursor()
    cursor.execute(RECORD_TIMEOUT)
    try:
        with transaction.atomic() if is_callers else nullcontext():
            assert keys(queue) == ["a1"]
        cursor.execute("SELECT value, current_setting(%s) FROM timeouts", [IDLE_TIMEOUT])
        assert cursor.fetchall() == [(timeout, "0")]
    finally:
        cursor.execute("DROP TABLE timeouts; DROP FUNCTION record_timeout CASCADE")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_poll_in_a_transaction_that_sees_old_leases_is_refused(queue: DelayedQueue, level: str):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1")
    with transaction.atomic():
        connection.cursor().execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        with pytest.raises(InvalidConfiguration, match="READ COMMITTED"):
            queue.try_poll()
    assert keys(queue) == ["a1"]


def test_operators_who_set_limits_do_not_wait_for_a_claim(impatient, other):
    with other.transaction():
        take_turn(other, impatient)
        impatient.groups.set(Groups(concurrency=1))
        assert impatient.groups.pause("a")
        offer(impatient, "a1")
