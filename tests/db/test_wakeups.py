"""Places where a sleeping consumer could miss a notification (Q21, W9)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection

from delayed_queue.db.wakeups import Listener, channel_of
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

CHANNEL = channel_of("orders|json")


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(["orders|json"], "default") as opened:
        yield opened


def arrived(descriptor: int) -> bytes:
    """Return the bytes in the socket, without removing them."""
    opened = socket.socket(fileno=descriptor)
    try:
        return opened.recv(65536, socket.MSG_PEEK)
    except BlockingIOError:
        return b""
    finally:
        opened.detach()  # libpq owns it, so do not close it


def test_a_notification_behind_an_answer_in_one_packet_is_heard(listener, other):
    """libpq reads both from the socket and stops at the end of the result."""
    raw: Any = connection.connection
    raw.pgconn.send_query(b"SELECT 1")
    wait_until(lambda: b"SELECT 1" in arrived(raw.fileno()))
    other.execute(f"NOTIFY {CHANNEL}")
    wait_until(lambda: CHANNEL.encode() in arrived(raw.fileno()))
    raw.pgconn.consume_input()
    while raw.pgconn.get_result() is not None:
        pass

    assert listener.wait(20)


def test_a_notification_is_heard_once(listener: Listener, other: psycopg.Connection[Any]):
    other.execute(f"NOTIFY {CHANNEL}")

    assert listener.wait(20)
    assert not listener.heard()
    assert not listener.wait(0)


def test_a_notification_with_an_answer_is_heard(listener: Listener, other: psycopg.Connection[Any]):
    other.execute(f"NOTIFY {CHANNEL}")
    raw: Any = connection.connection
    wait_until(lambda: CHANNEL.encode() in arrived(raw.fileno()))
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")

    assert listener.heard()


def test_it_tells_which_kinds_were_announced(listener: Listener, other: psycopg.Connection[Any]):
    assert listener.announced() is None, "unknown before the LISTEN"
    other.execute(f"NOTIFY {CHANNEL}")

    assert listener.wait(20)
    assert listener.announced() == {"orders|json"}
    assert listener.announced() == set()


def test_it_listens_to_other_kinds_from_then_on(listener: Listener, other: psycopg.Connection[Any]):
    listener.announced()
    listener.listen_to(["bills|json", "mails|json"])
    other.execute(f"NOTIFY {CHANNEL}")
    other.execute(f"NOTIFY {channel_of('bills|json')}")

    assert listener.wait(20)
    assert listener.announced() == {"bills|json"}


def test_a_connection_that_was_replaced_may_have_missed_any(listener: Listener):
    listener.announced()
    connection.close()

    assert listener.wait(20)
    assert listener.announced() is None
