"""Changes of a session by others: deallocated statements and interrupted waits."""

from __future__ import annotations

import signal
import sys
from typing import Final

import pytest
from django.db import ProgrammingError, connection, transaction

from delayed_queue import DelayedQueue
from delayed_queue.db.sql import IS_READ_ONLY
from delayed_queue.db.statements import fetch
from tests.queue.contract.support import HOUR
from tests.support.answers import present
from tests.support.operations import CREATED, OPERATIONS, PAST, Scene
from tests.support.processes import LEAN, Process, environment, killed_at_last, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def deallocate() -> None:
    """Deallocate all, as a pooler or a library that resets sessions does."""
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")


@pytest.fixture
def orders() -> DelayedQueue:
    return DelayedQueue("orders")


# Another client has deallocated the prepared statements: SQLSTATE 26000


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_prepares_anew_what_is_gone(orders: DelayedQueue, operation: str) -> None:
    call, answer = OPERATIONS[operation]
    assert not orders.contains_message("first")  # prepares nothing in a transaction before
    with transaction.atomic():
        call(Scene.of(orders))
        transaction.set_rollback(True)
    scene = Scene.of(orders)
    deallocate()
    assert call(scene) == answer


def test_a_statement_alone_says_so_once() -> None:
    fetch("default", IS_READ_ONLY, {})
    deallocate()
    with pytest.raises(ProgrammingError):
        fetch("default", IS_READ_ONLY, {})
    assert fetch("default", IS_READ_ONLY, {}) == [(False,)]


def test_an_announcement_that_is_gone_does_not_undo_the_offer(orders: DelayedQueue) -> None:
    """The offer it announces was committed before, and must not be offered a second time."""
    orders.offer_or_update("a", 1)
    deallocate()
    assert orders.offer_if_not_exists("b", 1) is CREATED


def test_a_transaction_that_meets_it_is_told_and_the_next_is_not(orders: DelayedQueue) -> None:
    def offer_two() -> None:
        with transaction.atomic():
            orders.offer_or_update("a", 1, delay=HOUR)
            orders.offer_or_update("b", 1, delay=HOUR)

    offer_two()
    deallocate()
    with pytest.raises(ProgrammingError):
        offer_two()
    offer_two()
    assert orders.contains_message("b")


def test_a_consumer_that_meets_it_is_told_and_loses_nothing(orders: DelayedQueue) -> None:
    orders.offer_or_update("a", 1, PAST)
    orders.offer_or_update("b", 1, PAST)
    with orders.consume() as envelope:
        assert present(envelope).key == "a"
    deallocate()
    with pytest.raises(ProgrammingError), orders.consume():
        pass
    with orders.consume() as envelope:
        assert (present(envelope).key, present(envelope).attempt) == ("b", 1)


# A signal while a statement waits for a lock, as Ctrl-C or the time limit of a web server

# Prints the backend's pid, how the call ended, and the results of the next calls.
PROGRAM: Final = """
import signal
import django
django.setup()
from datetime import timedelta
from django.db import connection, transaction
from delayed_queue import DelayedQueue, ScheduledMessage
queue = DelayedQueue("orders")

class TimeIsUp(Exception):
    "As time limits of task runners are raised."

def stop(number, frame):
    raise {error}

def in_a_transaction():
    with transaction.atomic():
        queue.offer_batch([ScheduledMessage("held", 2)])

calls = {{
    "one statement": lambda: queue.offer_or_update("held", 2, delay=timedelta(hours=1)),
    "an exchange": lambda: queue.offer_or_update("held", 2),
    "an exchange in a transaction": in_a_transaction,
}}
signal.signal(signal.SIGINT, stop)
connection.ensure_connection()
print("pid", connection.connection.info.backend_pid, flush=True)
try:
    calls[{call!r}]()
except BaseException as error:
    print("ended by", type(error).__name__, flush=True)
for key in ("x", "y"):
    print(queue.offer_or_update(key, 1), queue.offer_if_not_exists(key + key, 1), flush=True)
"""
CALLS: Final = ("one statement", "an exchange", "an exchange in a transaction")


@pytest.mark.parametrize(
    ("call", "error"), [*zip(CALLS, ["KeyboardInterrupt", "SystemExit", "TimeIsUp"], strict=True)]
)
def test_a_wait_that_is_interrupted_ends_and_leaves_a_connection_of_use(
    orders, other, admin, call, error
):
    """The error comes at once, though the lock is still held."""
    orders.offer_or_update("held", 1)
    other.execute("BEGIN")
    other.execute("SELECT FROM delayed_queue FOR UPDATE")
    program = PROGRAM.format(error=error, call=call)
    with killed_at_last(
        Process(sys.executable, "-c", program, env=environment() | LEAN)
    ) as process:
        wait_until(lambda: len(process.lines()) == 1)
        pid = int(process.lines()[0].split()[1])
        blocked = "SELECT 1 WHERE cardinality(pg_blocking_pids(%s)) > 0"
        wait_until(lambda: admin.execute(blocked, [pid]).fetchone())
        process.send_signal(signal.SIGINT)
        code, said = process.ended(20)
    assert said.splitlines()[1:] == [f"ended by {error}", "created created", "created created"]
    assert code == 0
    other.execute("ROLLBACK")
    assert present(orders.read("held")).payload == 1
