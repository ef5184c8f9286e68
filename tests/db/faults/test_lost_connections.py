"""Connections lost at a bad moment: statements are repeated once, if possible (Q27, Q33)."""

from __future__ import annotations

from typing import Any, Final

import psycopg
import pytest
from django.db import OperationalError, connection, transaction

from delayed_queue.models import Message
from delayed_queue.queue.store.inspect import DROP
from tests.support.concurrency import calling, wait_until_blocked
from tests.support.operations import CREATED, OPERATIONS, PAST, Scene
from tests.support.processes import wait_until

BLOCKED: Final = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"


def terminate(admin: psycopg.Connection[Any], pid: int) -> None:
    """Terminate the server process, and return once it has ended."""
    admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


def pid() -> int:
    """Return the server process of this thread's connection."""
    return int(connection.connection.info.backend_pid)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_q33_a_connection_that_ended_before_the_call_is_replaced(queue, proxy, admin, operation):
    """The first statement fails without an effect."""
    call, answer = OPERATIONS[operation]
    scene = Scene.of(queue)
    terminate(admin, pid())
    accepted = proxy.accepted

    assert call(scene) == answer

    assert proxy.accepted == accepted + 1


# They wait for a row that another transaction holds, and have changed nothing yet.
@pytest.mark.parametrize(
    ("operation", "key"),
    [
        ("offer_or_update", "due"),
        ("offer_batch", "due"),
        ("acknowledge", "leased"),
        ("acknowledge a batch", "leased"),
        ("release", "leased"),
        ("extend", "leased"),
        ("reject", "leased"),
        ("drop", "due"),
        ("drop all", "due"),
    ],
)
def test_a_statement_that_is_ended_while_it_waits_is_repeated(
    queue, proxy, other, admin, operation, key
):
    """Q27, Q33: on a new connection, where it waits again."""
    call, answer = OPERATIONS[operation]
    scene = Scene.of(queue)
    other.execute("BEGIN")
    other.execute('SELECT FROM delayed_queue WHERE "pKey" = %s FOR UPDATE', [key])

    with calling(lambda: call(scene)) as waiting:
        wait_until_blocked(admin, waiting)
        terminate(admin, waiting.pid)
        wait_until(lambda: admin.execute(BLOCKED, [other.info.backend_pid]).fetchone())
        other.execute("COMMIT")
        assert waiting.answer() == answer

    assert proxy.errors == ["57P01"]


def test_an_offer_that_is_ended_while_it_waits_creates_the_message(queue, other, admin):
    """Q33, Q7: the key is being deleted all the time."""
    queue.offer_or_update("key", "old", PAST)
    other.execute("BEGIN")
    other.execute(DROP, {"key": "key", "kind": queue.kind})

    with calling(lambda: queue.offer_or_update("key", "new")) as waiting:
        wait_until_blocked(admin, waiting)
        terminate(admin, waiting.pid)
        wait_until(lambda: admin.execute(BLOCKED, [other.info.backend_pid]).fetchone())
        other.execute("COMMIT")
        assert waiting.answer() is CREATED


@pytest.mark.parametrize("operation", OPERATIONS)
def test_q33_inside_a_transaction_nothing_is_repeated(queue, proxy, admin, operation):
    """Earlier statements of the transaction are lost, so its owner must get the error."""
    call, _ = OPERATIONS[operation]
    scene = Scene.of(queue)
    accepted: list[int] = []

    @transaction.atomic
    def call_in_a_transaction() -> None:
        queue.offer_or_update("before", None)
        terminate(admin, pid())
        try:
            call(scene)
        finally:
            accepted.append(proxy.accepted)

    with pytest.raises(OperationalError):
        call_in_a_transaction()

    assert accepted == [1], "it connected again"
    assert not Message.objects.filter(key="before").exists()
    assert queue.contains_message("due"), "the connection was not replaced afterwards"
