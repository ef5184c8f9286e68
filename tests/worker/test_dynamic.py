"""Queues that sources name while a worker runs: added, polled, removed (J7)."""

from __future__ import annotations

import logging
import sys
import threading
from datetime import timedelta

import pytest
from django.conf import settings as configured
from pytest_django import Settings

from delayed_queue import DelayedQueue, Envelope
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.handlers import Registry, Source
from delayed_queue.http.apps import _source as callbacks
from delayed_queue.models import Message
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.concurrency import raw_connection
from tests.support.processes import wait_until
from tests.support.running import handler_of, running
from tests.worker.dynamic import HOUR, WAKE_CHANNEL, Changing, is_empty, offer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]


class TestPreparing:
    def test_what_keeps_a_source_from_being_asked_is_said_when_the_worker_is_made(self) -> None:
        def prepare() -> None:
            raise InvalidConfiguration("not installed")

        registry = Registry()
        registry.add(handler_of("orders", print))
        registry.add_source(Source("changing", Changing(), WAKE_CHANNEL, prepare))
        with pytest.raises(InvalidConfiguration, match="not installed"):
            Worker(WorkerOptions(cron=False), registry)
        Worker(WorkerOptions(queues=("orders",), cron=False), registry)  # reads no source

    def test_callbacks_that_cannot_be_sent_stop_the_worker(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "delayed_queue.http.callbacks.delivery", None)
        registry = Registry()
        registry.add_source(callbacks())
        with pytest.raises(InvalidConfiguration, match=r"django-delayed-queue\[http\]"):
            Worker(WorkerOptions(cron=False), registry)


class TestComingAndGoing:
    def test_a_queue_that_is_announced_is_served_at_once(self) -> None:
        """Although the next refresh and the next poll are far away."""
        source = Changing()
        worker = source.worker(poll_interval=HOUR)
        with running(worker):
            wait_until(lambda: worker.dynamic.next_at != 0.0)
            source.add("new")
            wait_until(lambda: worker.queues == ["new"])
            DelayedQueue("new").offer_or_update("k", 1)
            wait_until(is_empty)

    def test_without_an_announcement_it_is_found_at_the_next_question(self, monkeypatch):
        monkeypatch.setattr("delayed_queue.worker.engine.serving.ASK_SECONDS", 0.05)
        offer("new", 3)
        source = Changing()
        with running(source.worker()):
            source.names.append("new")
            wait_until(is_empty)

    def test_a_queue_that_is_gone_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("delayed_queue.worker.engine.serving.ASK_SECONDS", 0.05)
        source = Changing("gone", "kept")
        worker = source.worker()
        with running(worker):
            wait_until(lambda: len(worker.consumers) == 2)
            source.names.remove("gone")
            wait_until(lambda: worker.queues == ["kept"])
            offer("gone", 1)
            offer("kept", 1)
            wait_until(lambda: source.handled)
        assert source.handled == [("kept", "k0")]
        assert Message.objects.get().kind == "gone|json"

    def test_what_is_in_hand_when_its_queue_goes_is_finished(self, monkeypatch):
        monkeypatch.setattr("delayed_queue.worker.engine.serving.ASK_SECONDS", 0.05)
        begun, may_end = threading.Event(), threading.Event()

        def wait(envelope: Envelope) -> None:
            begun.set()
            assert may_end.wait(20)

        offer("gone", 1)
        source = Changing("gone", function=wait)
        worker = source.worker()
        with running(worker):
            assert begun.wait(20)
            source.names.clear()
            wait_until(lambda: worker.queues == [])
            may_end.set()
            wait_until(is_empty)
        assert worker.counts == Counts(done=1)

    def test_a_source_that_fails_keeps_what_it_named(self, caplog):
        source = Changing("a")
        worker = source.worker(burst=True)
        worker.dynamic.ask()
        worker.dynamic.wake(None)
        source.names = None  # type: ignore[assignment]
        offer("a", 2)
        with caplog.at_level(logging.ERROR, "delayed_queue"):
            assert worker.run() == Counts(done=2)
        assert "event=source_failed source=changing" in caplog.text

    def test_a_kind_with_a_handler_of_its_own_keeps_that(self) -> None:
        own: list[str] = []
        source = Changing("a", "b")
        worker = source.worker(handler_of("a", lambda envelope: own.append(envelope.key)))
        worker.dynamic.ask()
        assert [consumer.queue.name for consumer in worker.consumers] == ["a", "b"]
        assert not worker.consumers[0].is_dynamic

    def test_a_shorter_lease_that_comes_later_is_renewed_in_time(self) -> None:
        """The keeper sleeps for fifty seconds when it arrives."""

        def slow(envelope: Envelope) -> None:
            leased_until = envelope.leased_until_ms
            wait_until(lambda: envelope.lease_lost or envelope.leased_until_ms > leased_until)

        offer("new", 1)
        source = Changing(function=slow)
        source.options = {"lease": timedelta(seconds=1)}
        worker = source.worker()
        with running(worker):
            source.add("new")
            wait_until(is_empty)
        assert worker.counts == Counts(done=1)


class TestLooking:
    def test_a_queue_that_never_has_anything_is_never_looked_at(self) -> None:
        """One statement checks all dozing queues together."""
        source = Changing(*(f"q{n}" for n in range(500)))
        worker = source.worker()
        with running(worker):
            wait_until(lambda: len(worker.consumers) == 500)
            offer("q77", 3)
            wait_until(is_empty)
            looks = [
                consumer.queue.name
                for consumer in worker.consumers
                if consumer.schedule.full_scans.at
            ]
        assert looks == ["q77"]

    def test_without_notify_the_idle_scan_finds_what_is_due(self, settings: Settings) -> None:
        settings.DELAYED_QUEUE = {**configured.DELAYED_QUEUE, "NOTIFY": False}
        worker = Changing("a", "b").worker()
        with running(worker):
            wait_until(
                lambda: (
                    worker.consumers
                    and all(consumer.schedule.is_idle for consumer in worker.consumers)
                )
            )
            offer("b", 3)
            wait_until(is_empty)
            wait_until(lambda: all(consumer.schedule.is_idle for consumer in worker.consumers))
            offer("b", 3)
            wait_until(is_empty)

    def test_what_falls_due_later_is_found_when_it_does(self) -> None:
        worker = Changing("a").worker(poll_interval=timedelta(seconds=0.4))
        with running(worker):
            wait_until(lambda: worker.consumers and worker.consumers[0].schedule.is_idle)
            DelayedQueue("a").offer_or_update("k", 1, delay=timedelta(seconds=1))
            wait_until(is_empty)

    def test_what_is_offered_into_the_past_is_found_though_nobody_announces_it(self, settings):
        """Below the scan position of its consumer: some idle scans are full ones."""
        settings.DELAYED_QUEUE = {**configured.DELAYED_QUEUE, "NOTIFY": False}
        worker = Changing("a").worker()
        with running(worker):
            offer("a", 1)
            wait_until(is_empty)
            wait_until(lambda: worker.consumers[0].schedule.is_idle)
            queue = DelayedQueue("a")
            queue.offer_or_update("k", 1, delay=HOUR)
            Message.objects.update(scheduled_at=1)
            wait_until(is_empty)

    def test_what_is_locked_wakes_its_consumer_and_does_not_hold_up_the_idle_scan(self) -> None:
        """Another consumer holds it, in a transaction that stays open."""
        worker = Changing("held", "b").worker()
        with running(worker), raw_connection() as other:
            wait_until(lambda: len(worker.consumers) == 2)
            other.execute("BEGIN")
            other.execute(
                'INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", '
                """"scheduledAtInitially", "createdAt") VALUES ('k', 'held|json', '1', 1, 1, 1)"""
            )
            other.execute("COMMIT; BEGIN; SELECT 1 FROM delayed_queue FOR UPDATE")
            offer("b", 3)
            wait_until(lambda: not Message.objects.filter(kind="b|json").exists())
            other.execute("COMMIT")
            wait_until(is_empty)

    def test_a_notification_wakes_its_own_queue_alone(self) -> None:
        worker = Changing("a", "b").worker(poll_interval=HOUR)
        with running(worker):
            wait_until(lambda: len(worker.consumers) == 2)
            offer("b", 1)
            wait_until(is_empty)
            offer("b", 1)
            wait_until(is_empty)
            looked = {
                consumer.queue.name
                for consumer in worker.consumers
                if consumer.schedule.full_scans.at
            }
        assert looked == {"b"}
