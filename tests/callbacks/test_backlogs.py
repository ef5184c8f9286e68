"""What is due for a host that takes nothing is put off many at a time (J12)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

import pytest
from asgiref.sync import async_to_sync
from django.db.models import Sum
from django.utils import timezone

from delayed_queue.http.callbacks.backlogs import (
    BITE,
    ENOUGH,
    MISSED_SECONDS,
    MOST_PREFIXES,
    Backlogs,
    passed_over,
    prefix_in,
)
from delayed_queue.http.callbacks.breaker import FIRST_WINDOW, HostState
from delayed_queue.http.jobs.catalogue import forget_topics
from delayed_queue.http.models import CallbackAttempt, Host
from delayed_queue.http.store.callbacks import PUT_OFF_BACKLOG
from delayed_queue.models import Message
from tests.callbacks.delivering import TOPIC, add_many, callback_worker, permitted
from tests.callbacks.servers import Receiver, closing, silent
from tests.factories import MessageFactory
from tests.processes import wait_until
from tests.races.concurrency import raw_connection
from tests.running import running

pytestmark = pytest.mark.django_db(transaction=True)

SECOND: Final = timedelta(seconds=1)
KIND: Final = f"{TOPIC}|callback"
HOST: Final = "example.com:443"
URL: Final = "https://example.com/hook"
MANY: Final = 3000
BACKLOG: Final = {
    "host": HOST, "kind": KIND, "after": 0, "after_id": 0, "limit": 10, "ahead": 0, "spread": 1000,
    "half": 10, "delay": None, "now": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh(db: None) -> Iterator[None]:
    forget_topics()
    yield
    forget_topics()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as opened:
        yield opened


def waiting(prefix: str = "dead") -> Any:
    """Return the messages that nobody holds and that are not due."""
    later = Message.objects.filter(scheduled_at__gt=timezone.now(), lease_id=None)
    return later.filter(key__startswith=prefix)


class TestDeadHosts:
    def test_j12_of_a_host_that_refuses_most_are_never_leased(self, receiver: Receiver) -> None:
        with Receiver() as gone:
            pass
        with permitted(receiver, gone):
            add_many("dead", MANY, gone.url)
            add_many("good", 50, receiver.url)
            worker = callback_worker()
            with running(worker):
                receiver.wait_for_requests(50)
                wait_until(lambda: waiting().count() == MANY)
        assert worker.counts.snoozed < MANY / 2
        dialled = CallbackAttempt.objects.filter(key__startswith="dead").count()
        assert Message.objects.aggregate(each=Sum("attempts"))["each"] == dialled
        assert dialled < 100
        open_until = Host.objects.get().open_until
        # A few that waited for the window are put off for less, before it was open.
        assert waiting().filter(attempts=0, scheduled_at__lt=open_until).count() < 100

    def test_j12_of_a_host_that_answers_nothing_too_before_it_is_open(
        self, receiver: Receiver
    ) -> None:
        with Receiver(silent) as hole, permitted(receiver, hole, TOTAL_TIMEOUT=30 * SECOND):
            add_many("dead", MANY, hole.url)
            add_many("good", 50, receiver.url)
            worker = callback_worker(shutdown_timeout=timedelta(0))
            with running(worker):
                receiver.wait_for_requests(50)
                wait_until(lambda: waiting().count() == MANY - FIRST_WINDOW)
                assert not Host.objects.exists()
                assert len(hole.requests) == FIRST_WINDOW
                assert not waiting().exclude(attempts=0).exists()
        assert worker.counts.snoozed < MANY / 2

    def test_j12_when_the_host_is_back_all_are_delivered_once(self, receiver: Receiver) -> None:
        times: dict[str, list[float]] = {}

        async def behave(wire: Any, request: Any) -> None:
            times.setdefault(request.path, []).append(time.time())
            await wire.answer(200 if is_back else 500)

        is_back, receiver.behaviour = False, behave
        with permitted(receiver, BREAKER_PAUSE=2 * SECOND):
            add_many("k", 500, receiver.url, ladder="1s 1s 1s 1s")
            first, second = callback_worker(), callback_worker()
            with running(first), running(second):
                wait_until(lambda: Host.objects.filter(openings=1).exists())
                host = Host.objects.get()
                is_back = True
                wait_until(lambda: not Message.objects.exists())
        failed = sum(len(each) - 1 for each in times.values())
        assert len(times) == 500
        assert failed < 100
        assert first.counts.done + second.counts.done == 500
        # What was on its way when the first worker opened it, and nothing until the pause is over.
        opened, until = host.opened_at.timestamp(), host.open_until.timestamp()
        early = [at for each in times.values() for at in each if opened + 1.1 < at < until]
        assert early == []

    @pytest.mark.parametrize("behaviour", [silent, closing])
    def test_j12_others_between_them_are_not_held_up(
        self, receiver: Receiver, behaviour: Any
    ) -> None:
        with Receiver(behaviour) as dead, permitted(receiver, dead, TOTAL_TIMEOUT=30 * SECOND):
            for n in range(20):
                add_many(f"dead{n}x", 200, dead.url)
                add_many(f"good{n}x", 3, receiver.url)
            worker = callback_worker(shutdown_timeout=timedelta(0))
            with running(worker):
                receiver.wait_for_requests(60)
                wait_until(lambda: waiting().count() >= 4000 - FIRST_WINDOW)
                # Claims may still pass over the dead ones.
                add_many("late", 5, receiver.url)
                wait_until(lambda: worker.counts.done == 65)
        assert worker.counts.snoozed < 2000

    @pytest.mark.parametrize("pause", [0, 1500])
    def test_j12_they_are_put_off_again_while_a_probe_has_no_answer(
        self, receiver: Receiver, pause: int
    ) -> None:
        receiver.behaviour = silent
        Host.objects.open(f"127.0.0.1:{receiver.port}", "timeout", pause=pause)
        with permitted(receiver, TOTAL_TIMEOUT=30 * SECOND):
            add_many("dead", MANY, receiver.url)
            worker = callback_worker(shutdown_timeout=timedelta(0))
            with running(worker):
                receiver.wait_for_requests(1)
                wait_until(lambda: waiting().count() == MANY - 1)
                assert len(receiver.requests) == 1
        assert worker.counts.snoozed < MANY / 2

    def test_j12_a_host_that_answers_costs_nothing(
        self, receiver: Receiver, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "delayed_queue")
        with permitted(receiver):
            add_many("k", 500, receiver.url)
            worker = callback_worker()
            with running(worker):
                wait_until(lambda: not Message.objects.exists())
        assert worker.counts.done == 500
        assert "event=backlog" not in caplog.text

    def test_j12_two_names_of_a_host_are_one(self, receiver: Receiver) -> None:
        """What is written in a way that was not met yet is leased as before."""
        with Receiver() as gone:
            pass
        with permitted(receiver, gone):
            other = gone.url.replace("http", "HTTP")
            for n in range(4):
                add_many(f"dead{n}x", 500, (gone.url, other)[n % 2])
            worker = callback_worker()
            with running(worker):
                wait_until(lambda: waiting().count() == 2000)
        assert worker.counts.snoozed < 1500
        assert Host.objects.count() == 1


def due(count: int, url: str = URL) -> None:
    made = [MessageFactory.build(kind=KIND, headers={"url": url}) for _ in range(count)]
    Message.objects.bulk_create(made)


def open_host(seconds: float = 60) -> HostState:
    Host.objects.open(HOST, "timeout", pause=int(seconds * 1000))
    return HostState(HOST, open_until=time.monotonic() + seconds)


@async_to_sync
async def meet(host: HostState, *urls: str) -> None:
    """Meet messages of a host, and wait for what comes of it."""
    backlogs = Backlogs("default")
    for url in urls:
        backlogs.meet(host, KIND, url, 0)
    for backlog in list(backlogs._backlogs.values()):
        if backlog.work is not None:
            await backlog.work


class TestPasses:
    def test_j12_a_few_messages_are_no_backlog(self) -> None:
        due(3)
        meet(open_host(), *[URL] * (ENOUGH - 1))
        assert not waiting("").exists()

    def test_j12_a_pass_goes_on_in_bites_to_the_end(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "delayed_queue")
        due(2 * BITE + 1)
        meet(open_host(), *[URL] * ENOUGH)
        assert waiting("").count() == 2 * BITE + 1
        assert f"event=backlog_put_off host={HOST} kind={KIND} count={2 * BITE + 1}" in caplog.text

    def test_j12_a_pass_ends_where_nearly_all_is_for_others(self) -> None:
        due(5)
        due(BITE, "https://example.org/")
        due(5)
        meet(open_host(), *[URL] * ENOUGH)
        assert waiting("").count() == 5

    def test_j12_a_host_that_takes_some_is_left_alone(self) -> None:
        due(3)
        open_host()
        meet(HostState(HOST), *[URL] * ENOUGH)
        assert not waiting("").exists()

    def test_j12_a_host_that_another_worker_has_closed_is_left_alone(self) -> None:
        due(3)
        host = open_host()
        Host.objects.update(open_until=None)
        meet(host, *[URL] * ENOUGH)
        assert not waiting("").exists()

    def test_j12_who_is_told_that_another_is_at_it_tries_again(self) -> None:
        due(3)
        host = open_host()
        with raw_connection() as other, ThreadPoolExecutor(1) as pool:
            other.execute("BEGIN")
            other.execute(PUT_OFF_BACKLOG, {**BACKLOG, "prefixes": []})

            @async_to_sync
            async def meet_it() -> None:
                backlogs = Backlogs("default")
                for _ in range(ENOUGH):
                    backlogs.meet(host, KIND, URL, 0)
                loop = asyncio.get_running_loop()
                # After it was told so once.
                loop.call_later(1.5 * MISSED_SECONDS, pool.submit, other.execute, "COMMIT")
                while works := [each.work for each in backlogs._backlogs.values() if each.work]:
                    assert passed_over("default", KIND) == ("https://example.com/",)
                    await asyncio.wait(works, timeout=MISSED_SECONDS)

            meet_it()
        assert waiting("").count() == 3
        assert passed_over("default", KIND) == ()

    def test_j12_no_more_ways_to_write_a_host_are_kept_than_may_be(self) -> None:
        host = open_host()
        urls = [f"https://example.com:{n}/" for n in range(ENOUGH)]
        for url in urls:
            due(1, url)
        meet(host, *urls)
        assert waiting("").count() == MOST_PREFIXES

    def test_j12_at_the_end_of_the_loop_no_bite_is_begun(self) -> None:
        due(3)
        host = open_host()

        @async_to_sync
        async def end() -> None:
            backlogs = Backlogs("default")
            for _ in range(ENOUGH):
                backlogs.meet(host, KIND, URL, 0)
            assert passed_over("default", KIND)
            await backlogs.close()

        end()
        assert not passed_over("default", KIND)
        assert not waiting("").exists()


class TestSilence:
    @pytest.mark.parametrize(
        ("running", "heard", "results", "seconds_each", "is_silent"),
        [
            (8, 0.3, [], 0.1, True),  # nothing was ever heard of it
            (7, 9, [], 0.1, False),  # there is room for one that may be answered
            (8, 0.2, [], 0.1, False),
            (8, 0.9, [True], 0.1, False),  # it has answered
            (8, 1.1, [True], 0.1, True),
            (8, 7.9, [True], 2.0, False),  # and takes two seconds
            (8, 8.1, [True], 2.0, True),
            (8, 0.3, [False], 2.0, True),
        ],
    )
    def test_j12_a_host_is_silent(
        self, running: int, heard: float, results: list[bool], seconds_each: float, is_silent: bool
    ) -> None:
        host = HostState(HOST, running=running, heard_at=time.monotonic() - heard)
        host.results.extend(results)
        host.seconds_each = seconds_each
        assert (host.delay_of_others() is not None) is is_silent


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("https://example.com/hook?a=b", "https://example.com/"),
        ("https://example.com", "https://example.com/"),
        ("https://example.com?a=/", "https://example.com?"),
        ("HTTP://Example.com:8080/", "HTTP://Example.com:8080/"),
        ("http://[2001:db8::1]:80/x", "http://[2001:db8::1]:80/"),
    ],
)
def test_the_beginning_of_a_url_ends_behind_its_host(url: str, prefix: str) -> None:
    assert prefix_in(url) == prefix
