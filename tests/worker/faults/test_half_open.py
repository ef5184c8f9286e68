"""Connections whose bytes are dropped without a FIN are replaced (W17).

The proxy acknowledges the bytes, as a pooler may, so that TCP itself notices nothing.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection

from delayed_queue import DelayedQueue, Envelope
from delayed_queue.db import silence
from delayed_queue.db.own import own_connection
from tests.support.processes import wait_until
from tests.support.proxied import proxied, proxy, queue
from tests.support.proxy import Proxy
from tests.support.running import handler_of, running, worker_with
from tests.support.sampling import sample

__all__ = ["proxied", "proxy", "queue"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.slow
@pytest.mark.parametrize(("concurrency", "seconds"), sample([(1, 2), (10, 8)], (10, 8)))
def test_a_worker_handles_what_is_offered_while_its_connections_are_half_open(
    queue: DelayedQueue, proxy: Proxy, concurrency: int, seconds: int
) -> None:
    handled: dict[str, threading.Event] = {key: threading.Event() for key in ("before", "after")}

    def handle(envelope: Envelope) -> None:
        handled[envelope.key].set()

    handler = handler_of("faults", handle)
    interval = timedelta(seconds=seconds)
    with running(worker_with(handler, poll_interval=interval, concurrency=concurrency)):
        queue.offer_or_update("before", 1)
        assert handled["before"].wait(30)
        wait_until(lambda: not queue.contains_message("before"))
        proxy.drop_bytes()
        connection.close()
        dropped_at = time.monotonic()
        queue.offer_or_update("after", 1)
        assert handled["after"].wait(60)
        assert time.monotonic() - dropped_at < 30
        wait_until(lambda: not queue.contains_message("after"))


def test_a_slow_answer_is_waited_for_longer_the_next_time(monkeypatch, other):
    monkeypatch.setattr(silence, "ANSWER_SECONDS", 0.5)
    own = own_connection("default")
    try:
        taken = 0
        for _ in range(5):
            try:
                with own.cursor() as cursor:
                    cursor.execute("SELECT pg_sleep(1.5)")
                break
            except OperationalError:
                taken += 1
                assert own.connection.closed
                own.close()
        assert taken == 2  # after 0.5 s and 1 s
        # The abandoned statements stop on the server, too.
        wait_until(lambda: running_statements(other) == 0)
    finally:
        own.close()


def running_statements(other: psycopg.Connection[Any]) -> int:
    row = other.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND state = 'active' AND query = 'SELECT pg_sleep(1.5)'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_connections_of_the_project_are_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "ANSWER_SECONDS", 0.1)
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.5)")
