"""Limits that hold callbacks back: breakers, deletions, windows, rates (J12)."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from delayed_queue.http.callbacks import breaker
from delayed_queue.http.callbacks.calls import CallbackResult, Failure
from delayed_queue.http.jobs.catalogue import create_topic, forget_topics
from delayed_queue.http.jobs.kinds import OWN_SHARDS, host_of, shard_of_host
from delayed_queue.http.models import CallbackAttempt, Endpoint, Host, Topic
from delayed_queue.models import Message
from delayed_queue.worker.engine.settling import Counts
from tests.http.callbacks.delivering import (
    add,
    add_many,
    callback_worker,
    make_due,
    permitted,
    send_due,
)
from tests.http.callbacks.looking import is_empty_when_due
from tests.http.callbacks.servers import Receiver, answering
from tests.support.factories import MessageFactory
from tests.support.processes import wait_until
from tests.support.running import running

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh")]


class TestBreaker:
    def test_j12_an_open_host_is_not_dialled_and_burns_no_attempt(self, receiver: Receiver) -> None:
        receiver.behaviour = answering(500)
        with permitted(receiver, BREAKER_FAILURES=3):
            for n in range(3):
                add(f"k{n}", receiver.url)
            send_due()
            assert Host.objects.get().open_until is not None
            add("later", receiver.url)
            worker = send_due()
        assert worker.counts == Counts(snoozed=1)
        assert len(receiver.requests) == 3
        later = Message.objects.get(key="later")
        assert (later.attempts, later.last_error) == (0, None)
        assert later.scheduled_at > timezone.now() + timedelta(seconds=25)

    def test_j12_half_open_one_probe_closes_it(self, receiver: Receiver) -> None:
        receiver.behaviour = answering(500)
        with permitted(receiver, BREAKER_FAILURES=3):
            for n in range(3):
                add(f"k{n}", receiver.url)
            send_due()
            Host.objects.update(open_until=1)
            receiver.behaviour = answering(200)
            make_due()
            with running(callback_worker()):
                wait_until(lambda: Host.objects.get().open_until is None)
                wait_until(is_empty_when_due)
        assert len(receiver.requests) == 6

    def test_j12_a_probe_that_fails_opens_it_for_twice_as_long(self, receiver: Receiver) -> None:
        receiver.behaviour = answering(500)
        with permitted(receiver, BREAKER_FAILURES=3):
            for n in range(6):
                add(f"k{n}", receiver.url)
            send_due()
            assert len(receiver.requests) >= 3
            before = len(receiver.requests)
            Host.objects.update(open_until=1)
            make_due()
            send_due()
        host = Host.objects.get()
        assert len(receiver.requests) == before + 1
        assert host.openings == 2
        assert host.open_until > timezone.now() + timedelta(seconds=55)

    def test_j12_the_shard_of_a_host_that_takes_nothing_rests(self, receiver: Receiver) -> None:
        """Most of its messages are never leased, and stay due, while others are sent."""
        with Receiver() as gone:
            pass
        with permitted(receiver, gone):
            add_many("dead", 2000, gone.url)
            add_many("good", 50, receiver.url)
            worker = callback_worker()
            with running(worker):
                receiver.wait_for_requests(50)
                wait_until(lambda: Host.objects.filter(open_until__gt=timezone.now()).exists())
        untouched = Message.objects.filter(key__startswith="dead", attempts=0)
        assert untouched.filter(scheduled_at__lt=timezone.now()).count() > 1000
        assert worker.counts.snoozed < 1000
        assert CallbackAttempt.objects.filter(key__startswith="dead").count() < 100

    def test_j12_a_shard_that_hosts_share_does_not_rest(self, receiver: Receiver) -> None:
        with Receiver() as gone:
            pass
        hosts = " ".join(f"host-{n}:80" for n in range(OWN_SHARDS))
        create_topic("orders")
        Topic.objects.update(hosts=hosts)
        forget_topics()
        shard = shard_of_host(host_of(gone.url), hosts)
        with permitted(receiver, gone):
            add_many("dead", 500, gone.url)
            Message.objects.bulk_create(
                MessageFactory.build(
                    kind=f"orders#{shard}|callback", headers={"url": f"{receiver.url}/good{n}"}
                )
                for n in range(20)
            )
            with running(callback_worker()):
                receiver.wait_for_requests(20)

    def test_j12_a_host_that_answers_costs_no_write(self, receiver: Receiver) -> None:
        for n in range(50):
            add(f"k{n}", receiver.url)
        send_due()
        assert not Host.objects.exists()


class TestLimits:
    @pytest.mark.parametrize(
        ("results", "seconds", "window"),
        [
            ([], 0, breaker.FIRST_WINDOW),
            ([False], 0.1, breaker.FIRST_WINDOW),
            ([True], 0.1, math.inf),
            ([True], 8, math.inf),  # one slow answer: an average of one second
            ([True, True], 9, 25),  # a quarter of ASYNC_CONCURRENCY
        ],
    )
    def test_j12_the_window_of_a_host(self, results, seconds, window):
        host = breaker.HostState("h")
        for is_success in results:
            failure = None if is_success else Failure.TIMEOUT
            host.note(CallbackResult(timedelta(seconds=seconds), failure))
        assert host.window == window

    def test_j12_the_rate_of_an_endpoint_is_kept_and_nothing_fails(self, receiver):
        add("first", receiver.url)
        send_due()
        Endpoint.objects.update(per_second=10, burst=2)
        for n in range(20):
            add(f"k{n}", receiver.url)
        worker = callback_worker()
        began_at = timezone.now()
        with running(worker):
            receiver.wait_for_requests(21)
        assert timezone.now() - began_at > timedelta(seconds=1.7)
        wait_until(lambda: CallbackAttempt.objects.count() == 21)
        assert worker.counts.done == 20
        assert worker.counts.failed == 0

    def test_j12_no_more_than_its_concurrency_are_on_the_wire(self, receiver: Receiver) -> None:
        most, now = [0], 0

        async def behave(wire: Any, request: Any) -> None:
            nonlocal now
            now += 1
            most[0] = max(most[0], now)
            await asyncio.sleep(0.05)
            now -= 1
            await wire.answer(200)

        add("first", receiver.url)
        send_due()
        Endpoint.objects.update(concurrency=2)
        receiver.behaviour = behave
        for n in range(12):
            add(f"k{n}", receiver.url)
        workers = [callback_worker(), callback_worker()]
        with running(workers[0]), running(workers[1]):
            receiver.wait_for_requests(13)
            wait_until(lambda: not Message.objects.exists())
        assert 1 <= most[0] <= 2
        assert sum(worker.counts.failed for worker in workers) == 0
