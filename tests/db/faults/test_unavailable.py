"""Retried errors: which, how often, and with which result (Q33, Q34)."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, Final

import psycopg
import pytest
from django.db import InternalError, OperationalError, ProgrammingError, connection, transaction

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.db.resilience import repeat
from delayed_queue.exceptions import InvalidMessage, PayloadNotEncodable, ResourceUnavailable
from delayed_queue.retries import Backoff
from tests.support.answers import present, sqlstate_of
from tests.support.concurrency import TIMEOUT, calling, raw_connection, running, wait_until_blocked
from tests.support.operations import CREATED, OPERATIONS, PAST, UPDATED, Scene
from tests.support.processes import wait_until
from tests.support.proxied import BACKOFF
from tests.support.proxy import Proxy
from tests.support.sampling import sample

# Set on the server, because Django's own option is for transaction blocks only.
REPEATABLE_READ: Final = {"options": r"-c default_transaction_isolation=repeatable\ read"}
READ_ONLY: Final = {"options": "-c default_transaction_read_only=on"}
LOCK: Final = 'SELECT id FROM delayed_queue WHERE "pKey" = %s FOR UPDATE'


@pytest.mark.parametrize("operation", sample(OPERATIONS, "offer_batch", "acknowledge", "drop"))
def test_q33_a_database_that_refuses_connections_is_unavailable_after_the_backoff(
    queue: DelayedQueue, proxy: Proxy, operation: str
):
    """Waits of 10, 20 and 40 ms; the cause is attached."""
    call, _ = OPERATIONS[operation]
    scene = Scene.of(queue)
    proxy.refuse()
    started = time.monotonic()

    with pytest.raises(ResourceUnavailable) as caught:
        call(scene)

    assert sum(BACKOFF.waits()) <= time.monotonic() - started < 5
    assert type(caught.value) is ResourceUnavailable
    assert isinstance(caught.value.__cause__, OperationalError)
    assert isinstance(caught.value.__cause__.__cause__, psycopg.OperationalError)


def test_q33_a_database_that_hangs_up_is_tried_as_often_as_configured(queue, proxy):
    """One call on the cut connection, and three on new ones."""
    Scene.of(queue)
    proxy.hang_up()
    accepted = proxy.accepted

    with pytest.raises(ResourceUnavailable):
        queue.try_poll()

    assert proxy.accepted == accepted + BACKOFF.retries


def test_q33_a_database_that_comes_back_in_time_is_used(queue, proxy, settings):
    tick = timedelta(milliseconds=10)
    settings.DELAYED_QUEUE = {"BACKOFF": Backoff(retries=100, initial=tick, maximum=tick)}
    is_ill = threading.Event()

    def offer_in_illness() -> Any:
        assert is_ill.wait(TIMEOUT)
        return queue.offer_or_update("key", None)

    with calling(offer_in_illness) as offering:
        proxy.hang_up()
        accepted = proxy.accepted
        is_ill.set()
        wait_until(lambda: proxy.accepted >= accepted + 3)
        proxy.accept()
        assert offering.answer() is CREATED


def count_an_attempt(other: psycopg.Connection[Any], key: str) -> None:
    """Change the row but not its lease, and leave the transaction to the caller."""
    statement = 'UPDATE delayed_queue SET attempts = attempts + 1 WHERE "pKey" = %s'
    assert other.execute(statement, [key]).rowcount == 1


@pytest.mark.parametrize("proxied", [REPEATABLE_READ], indirect=True)
def test_q33_a_serialization_failure_is_repeated(queue, proxy, other, admin):
    """40001, on the same connection."""
    scene = Scene.of(queue)
    other.execute("BEGIN")
    count_an_attempt(other, "leased")

    with calling(scene.batch[0].acknowledge) as acknowledging:
        wait_until_blocked(admin, acknowledging)
        accepted = proxy.accepted
        other.execute("COMMIT")
        assert acknowledging.answer() is True

    assert proxy.errors == ["40001"]
    assert proxy.accepted == accepted


@pytest.mark.parametrize("proxied", [REPEATABLE_READ], indirect=True)
def test_q33_a_serialization_failure_inside_a_transaction_is_not_repeated(queue, proxy, other):
    """The error belongs to the transaction, which only its owner can repeat."""
    scene = Scene.of(queue)

    @transaction.atomic
    def acknowledge_too_late() -> None:
        assert queue.contains_message("leased")
        count_an_attempt(other, "leased")
        scene.batch[0].acknowledge()

    with pytest.raises(OperationalError) as caught:
        acknowledge_too_late()

    assert sqlstate_of(caught.value) == "40001"
    assert proxy.errors == ["40001"]


@pytest.mark.parametrize("proxied", [{"options": "-c deadlock_timeout=10ms"}], indirect=True)
def test_q33_a_deadlock_is_repeated(queue, proxy, other, admin):
    """40P01. The batch locks a, waits for b, and closes the circle at c."""
    queue.offer_batch([ScheduledMessage(key, "old", PAST) for key in "abc"])
    messages = [ScheduledMessage(key, "new", PAST) for key in "abc"]
    other.execute("SET deadlock_timeout = '1min'")
    other.execute("BEGIN")
    count_an_attempt(other, "c")

    with raw_connection() as gate:
        gate.execute("BEGIN")
        count_an_attempt(gate, "b")
        with calling(lambda: queue.offer_batch(messages)) as offering:
            wait_until_blocked(admin, offering)
            with running(other, LOCK, ["a"]) as waiting:
                wait_until_blocked(admin, waiting)
                gate.execute("ROLLBACK")
                assert len(waiting.answer()) == 1
            other.execute("COMMIT")
            assert offering.answer() == [UPDATED] * 3

    # The repetition may lock row a before the session that waited for it has woken.
    assert set(proxy.errors) == {"40P01"}


def test_q33_a_connection_that_only_reads_is_given_up_for_another(queue, proxy):
    """25006, as on a standby; a new connection may reach the primary."""
    Scene.of(queue)
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    accepted = proxy.accepted

    assert queue.offer_or_update("new", None) is CREATED

    assert proxy.errors == ["25006"]
    assert proxy.accepted == accepted + 1


@pytest.mark.parametrize("proxied", [READ_ONLY], indirect=True)
def test_q33_a_database_that_only_reads_is_unavailable_after_the_backoff(queue, proxy):
    """A transaction raises it, since only its owner can repeat it."""
    assert queue.contains_message("due") is False
    with pytest.raises(ResourceUnavailable) as caught:
        queue.offer_or_update("due", None)
    assert sqlstate_of(present(caught.value.__cause__)) == "25006"
    assert proxy.errors == ["25006"] * (1 + BACKOFF.retries)

    with pytest.raises(InternalError), transaction.atomic():
        queue.offer_or_update("due", None)
    assert len(proxy.errors) == 2 + BACKOFF.retries


@pytest.mark.parametrize(
    ("setting", "expected", "sqlstate"),
    [
        ("search_path = nowhere", ProgrammingError, "42P01"),
        ("lock_timeout = '50ms'", OperationalError, "55P03"),
        ("statement_timeout = '50ms'", OperationalError, "57014"),
    ],
)
def test_q34_an_error_that_repeating_cannot_help_is_raised_at_once(
    queue, proxy, other, setting, expected, sqlstate
):
    """Executed once."""
    Scene.of(queue)
    with connection.cursor() as cursor:
        cursor.execute(f"SET {setting}")

    with other.transaction():
        other.execute(LOCK, ["due"])
        with pytest.raises(expected):
            queue.offer_or_update("due", "new", PAST)

    assert proxy.errors == [sqlstate]


class Stubborn:
    """A codec that counts its refusals."""

    name = "stubborn"

    def __init__(self) -> None:
        self.refusals = 0

    def encode(self, payload: Any) -> bytes:
        self.refusals += 1
        raise ValueError("never")

    def decode(self, data: bytes) -> Any:
        return data


def test_q34_a_payload_that_cannot_be_encoded_is_tried_once_and_sends_nothing(proxied, proxy):
    codec = Stubborn()
    queue = DelayedQueue("faults", codec=codec)

    with pytest.raises(PayloadNotEncodable):
        queue.offer_or_update("key", None)

    assert codec.refusals == 1
    assert proxy.accepted == 0


@pytest.mark.parametrize(
    ("key", "schedule_at"), [("", None), ("a\0b", None), ("key", PAST.replace(tzinfo=None))]
)
def test_a_message_that_is_refused_sends_nothing(queue, proxy, key, schedule_at):
    """Q34, Q8."""
    with pytest.raises(InvalidMessage):
        queue.offer_or_update(key, None, schedule_at)

    assert proxy.accepted == 0


def test_q34_an_error_of_the_caller_is_not_repeated(proxied: None):
    calls = []

    def fail() -> None:
        calls.append("call")
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        repeat("default", fail)

    assert calls == ["call"]
