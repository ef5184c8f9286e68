"""A call of an SQL function whose session is terminated in the middle changes nothing (S3, S5)."""

from __future__ import annotations

import json
from typing import Any, Final

import psycopg
import pytest

from delayed_queue import DelayedQueue, Groups, ScheduledMessage
from delayed_queue.models import DeadLetter, Message
from tests.support.concurrency import raw_connection, running, wait_until_blocked

KEYS: Final = ("a", "b")
TERMINATE: Final = "SELECT pg_terminate_backend(%s, 20000)"
LOCK_ROW: Final = 'SELECT id FROM delayed_queue WHERE "pKey" = %s FOR UPDATE'
LOCK_LETTERS: Final = "LOCK TABLE delayed_queue_dead_letter IN EXCLUSIVE MODE"
OFFER_B: Final = "SELECT delayed_queue_offer('cut', %s, '2')"
BATCH: Final = json.dumps([{"key": key, "payload": 1} for key in KEYS])

pytestmark = pytest.mark.django_db(transaction=True)


def terminate_in_the_middle(call: str, block: str, *params: Any) -> None:
    """Run the call while another session blocks it; terminate its session there."""
    with raw_connection() as holder, raw_connection() as admin, raw_connection() as own:
        holder.execute("BEGIN")
        holder.execute(block, params)
        with running(own, f"SELECT * FROM delayed_queue_{call}", None) as started:  # noqa: S608
            wait_until_blocked(admin, started)
            admin.execute(TERMINATE, [started.pid])
            with pytest.raises(psycopg.OperationalError):
                started.answer()
        holder.execute("ROLLBACK")


def claimed(queue: DelayedQueue) -> str:
    queue.offer_batch([ScheduledMessage(key, 1) for key in KEYS])
    with raw_connection() as raw:
        rows = raw.execute("SELECT lease_id FROM delayed_queue_claim('cut', 2)").fetchall()
    return str(rows[0][0])


def stored() -> list[Any]:
    return list(Message.objects.order_by("key").values())


def test_s1_a_batch_that_is_cut_offers_nothing():
    """It has written the first key when it waits for the second."""
    terminate_in_the_middle(f"offer_many('cut', '{BATCH}')", OFFER_B, "b")
    assert stored() == []


def test_s1_an_update_that_is_cut_changes_nothing():
    DelayedQueue("cut").offer_or_update("a", 1)
    before = stored()
    terminate_in_the_middle("offer('cut', 'a', '2')", LOCK_ROW, "a")
    assert stored() == before


@pytest.mark.parametrize("groups", [None, Groups(rate="1/h", burst=5)], ids=["plain", "grouped"])
def test_s2_a_claim_that_is_cut_leases_nothing(groups: Groups | None):
    """It has leased both when it waits to write the dead letter of the one that is not JSON."""
    queue = DelayedQueue("cut")
    if groups:
        queue.groups.set(groups)
    DelayedQueue("cut", codec="bytes", kind=queue.kind).offer_or_update("a", b"{", group="g")
    queue.offer_or_update("b", 1, group="g")
    before = stored()
    terminate_in_the_middle("claim('cut', 2)", LOCK_LETTERS)
    assert stored() == before
    assert [each.key for each in queue.try_poll_many(2)] == ["b"]


@pytest.mark.parametrize(
    "call", ["acknowledge({0})", "release({0})", "reject({0})", "extend({0}, '1 hour')"]
)
def test_s2_a_settlement_that_is_cut_settles_nothing(call: str):
    """It has settled the first message when it waits for the second."""
    lease = claimed(DelayedQueue("cut"))
    before = stored()
    terminate_in_the_middle(call.format(f"'{lease}'"), LOCK_ROW, "b")
    assert stored() == before
    assert not DeadLetter.objects.exists()
    with raw_connection() as raw:
        found = raw.execute("SELECT delayed_queue_acknowledge(%s)", [lease]).fetchone()
    assert found == (2,)


def test_s1_a_drop_that_is_cut_drops_nothing():
    DelayedQueue("cut").offer_or_update("b", 1)
    terminate_in_the_middle("drop('cut', 'b')", LOCK_ROW, "b")
    assert [each["key"] for each in stored()] == ["b"]


def test_s5_each_call_may_run_in_another_session_and_leaves_nothing_in_it():
    """As behind PgBouncer in transaction mode: the next transaction is another client's."""
    DelayedQueue("cut").groups.set(Groups(concurrency=1, rate="10/s", burst=10))
    with raw_connection() as first, raw_connection() as second, raw_connection() as third:
        before = [session_of(each) for each in (first, second, third)]
        first.execute("SELECT delayed_queue_offer('cut', 'a', '1', \"group\" => 'g')")
        row = second.execute("SELECT lease_id FROM delayed_queue_claim('cut')").fetchone()
        assert row is not None
        assert third.execute("SELECT delayed_queue_extend(%s)", row).fetchone() == (1,)
        assert first.execute("SELECT delayed_queue_acknowledge(%s)", row).fetchone() == (1,)
        assert [session_of(each) for each in (first, second, third)] == before


def session_of(raw: psycopg.Connection[Any]) -> list[Any]:
    """Return the settings, locks and temporary tables of the session.

    Those of PL/pgSQL exist as soon as PostgreSQL has loaded the language.
    """
    return raw.execute(
        """
        SELECT name, setting FROM pg_settings WHERE name NOT LIKE 'plpgsql.%'
        UNION ALL
        SELECT 'lock', locktype FROM pg_locks
        WHERE pid = pg_backend_pid() AND locktype = 'advisory'
        UNION ALL
        SELECT 'temporary', pg_my_temp_schema()::text
        ORDER BY 1, 2
        """
    ).fetchall()
