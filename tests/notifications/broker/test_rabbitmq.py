"""Real RabbitMQ (N2): killed consumers, cut connections, an outage of the database."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from delayed_queue.notifications.models import Notification, ParkedRequest
from tests.notifications.broker.brokers import (
    Broker,
    consume,
    consumer_of,
    consuming,
    port_of,
    total,
)
from tests.notifications.broker.forwarder import Forwarder
from tests.notifications.requests import email
from tests.support.processes import ROOT, Process, environment, managed, wait_until
from tests.support.proxies import proxied


@contextmanager
def forwarded(broker: Broker) -> Iterator[Forwarder]:
    """Route connections to the broker's URL through a forwarder."""
    forwarder, direct = Forwarder(port_of(broker.url)), broker.url
    broker.url = f"amqp://guest:guest@127.0.0.1:{forwarder.port}//"
    try:
        yield forwarder
    finally:
        broker.url = direct
        forwarder.close()


def stored() -> int:
    return Notification.objects.count()


def _has_stored(count: int) -> bool:
    return stored() >= count


def test_n2_killed_between_commit_and_acknowledgement(rabbitmq):
    rabbitmq.send(*[email(dedupeKey=str(each)) for each in range(50)])
    rabbitmq.publish(50)
    rabbitmq.send(b"{")
    dying = subprocess.run(
        [sys.executable, "-m", "tests.notifications.broker.dying_consumer",
         rabbitmq.url, rabbitmq.queue],
        cwd=ROOT, env=environment(), timeout=60, check=False,
    )  # fmt: skip
    assert dying.returncode == -signal.SIGKILL
    assert (stored(), ParkedRequest.objects.count()) == (100, 1)
    wait_until(lambda: rabbitmq.waiting() == 101, 20)

    consumer = consume(rabbitmq, 101)
    assert (consumer.tally.accepted, consumer.tally.duplicates) == (0, 100)
    assert stored() == 100
    assert ParkedRequest.objects.get().times == 2


def test_n2_a_broker_that_is_away_is_waited_for(rabbitmq):
    rabbitmq.send(email())
    with forwarded(rabbitmq) as forwarder:
        forwarder.is_refusing = True
        consumer = consumer_of(rabbitmq)
        with consuming(consumer):
            wait_until(lambda: forwarder.accepted >= 3)
            assert total(consumer) == 0
            forwarder.is_refusing = False
            wait_until(lambda: stored() == 1)


def test_n2_a_database_that_is_away_is_waited_for_and_sigterm_leaves_nothing_in_hand(rabbitmq):
    rabbitmq.publish(5)
    with proxied() as proxy, consumer_process(rabbitmq, DATABASE_URL=proxy.url) as process:
        wait_until(lambda: stored() == 5)
        proxy.refuse()
        rabbitmq.publish(20)
        # It has received them, and returned them.
        wait_until(lambda: rabbitmq.waiting() == 20)
        proxy.accept()
        wait_until(lambda: stored() == 25)
        # It acknowledges the messages it has stored before it stops.
        rabbitmq.publish(500)
        wait_until(lambda: stored() > 25)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    wait_until(lambda: stored() + rabbitmq.waiting() == 525, 10)


@contextmanager
def consumer_process(broker: Broker, **variables: str) -> Iterator[Process]:
    """Run the command on the broker's queue; kill it at the end if it still runs."""
    with managed(
        "consumenotifications", "--queue", broker.queue, "--tenant", "upstream",
        "--batch-size", "20", AMQP_URL=broker.url, **variables,
    ) as process:  # fmt: skip
        yield process


@pytest.mark.slow
def test_n23_a_half_open_connection_is_replaced_within_two_heartbeats(rabbitmq, caplog):
    rabbitmq.publish(3)
    with forwarded(rabbitmq) as forwarder, consuming(consumer_of(rabbitmq, heartbeat=2)) as thread:
        wait_until(lambda: stored() == 3)
        accepted = forwarder.accepted
        forwarder.stall()
        rabbitmq.publish(3)
        wait_until(lambda: forwarder.accepted > accepted)
        wait_until(lambda: stored() == 6)
        assert thread.is_alive()
    assert "event=consumer_lost" in caplog.text


@pytest.mark.slow
def test_n23_sigterm_ends_one_whose_connection_is_half_open(rabbitmq):
    rabbitmq.publish(3)
    with forwarded(rabbitmq) as forwarder, consumer_process(rabbitmq) as process:
        wait_until(lambda: stored() == 3)
        forwarder.stall()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


@pytest.mark.slow
def test_w20_sigterm_ends_it_while_the_database_answers_nothing(rabbitmq):
    rabbitmq.publish(1)
    with (
        proxied() as proxy,
        consumer_process(rabbitmq, DATABASE_URL=proxy.url, SHUTDOWN_SECONDS="2") as process,
    ):
        wait_until(lambda: stored() == 1)
        proxy.stall()
        rabbitmq.publish(1)
        wait_until(lambda: rabbitmq.waiting() == 0)
        started_at = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        assert time.monotonic() - started_at < 2 + 5 + 4  # of a busy machine
        proxy.resume()


@pytest.mark.slow
def test_n2_many_consumers_and_cuts_lose_and_double_nothing(rabbitmq):
    count = 1000
    rabbitmq.publish(count)
    with forwarded(rabbitmq) as forwarder:
        first, second = consumer_of(rabbitmq, batch=50), consumer_of(rabbitmq, batch=50)
        with consuming(first), consuming(second):
            for share in range(1, 5):
                wait_until(partial(_has_stored, count * share // 5))
                forwarder.cut()
            wait_until(lambda: stored() >= count)
    assert stored() == count
