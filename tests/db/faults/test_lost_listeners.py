"""A poller whose connection is lost while it sleeps (Q21, Q33)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from delayed_queue import DelayedQueue, Envelope
from delayed_queue.db.sql import NOTIFY
from delayed_queue.db.wakeups import channel_of
from delayed_queue.exceptions import ResourceUnavailable
from tests.support.answers import present
from tests.support.concurrency import Call, at_most, calling
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.rivals import insert


def is_asleep(proxy: Proxy) -> bool:
    """Since its last LISTEN it claimed, read the next due time and claimed again.

    It also reads the limits of the queue, as it does once a second.
    """
    answers = [answer for answer in proxy.answers if answer != "SET"]
    asleep = [["LISTEN", "UPDATE 0", *["SELECT 0"] * looks, "UPDATE 0"] for looks in (1, 2)]
    return any(answers[-len(each) :] == each for each in asleep)


@pytest.fixture
def sleeper(proxied: None) -> DelayedQueue:
    """A queue whose pollers would sleep for an hour."""
    return DelayedQueue("faults", poll_interval=timedelta(hours=1))


@pytest.fixture
def polling(sleeper: DelayedQueue, proxy: Proxy) -> Iterator[Call[Envelope | None]]:
    with calling(lambda: sleeper.poll(timeout=30)) as call:
        wait_until(lambda: is_asleep(proxy))
        yield call


def offer(other: psycopg.Connection[Any], queue: DelayedQueue) -> None:
    """Put a message and announce it, past the proxy."""
    with other.transaction():
        insert(other, queue)
        other.execute(NOTIFY, {"channel": channel_of(queue.kind)})


@pytest.mark.parametrize("loss", ["terminated", "cut"])
def test_q21_a_poller_whose_connection_is_lost_listens_again_and_wakes(
    sleeper, proxy, other, admin, polling, loss
):
    """A notification wakes it, for its poll interval is an hour."""
    seen = len(proxy.answers)
    if loss == "terminated":
        admin.execute("SELECT pg_terminate_backend(%s)", [polling.pid])
    else:
        proxy.cut()

    wait_until(lambda: "LISTEN" in proxy.answers[seen:] and is_asleep(proxy))
    offer(other, sleeper)
    with at_most(5.0):
        envelope = present(polling.answer())

    assert (envelope.key, envelope.attempt) == ("key", 1)


def test_q21_what_is_offered_while_the_connection_is_lost_is_found(sleeper, proxy, other, polling):
    """Its notification was lost."""
    with other.transaction():
        proxy.cut()
        offer(other, sleeper)
    with at_most(5.0):
        assert present(polling.answer()).key == "key"


def test_q33_a_poller_whose_database_is_gone_says_so(proxy: Proxy, polling: Call[Envelope | None]):
    """After the backoff, not after the poll interval."""
    proxy.refuse()

    with at_most(5.0), pytest.raises(ResourceUnavailable):
        polling.answer()
