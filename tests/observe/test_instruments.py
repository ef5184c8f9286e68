"""Instruments around offers and handlers: they observe all calls and change no outcome (W13)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings

from delayed_queue import (
    Batch,
    DelayedQueue,
    Envelope,
    OfferOutcome,
    Reject,
    ScheduledMessage,
    Snooze,
)
from delayed_queue.codecs import codec_named
from delayed_queue.handlers import Handler
from delayed_queue.instruments import wrap
from delayed_queue.testing import InMemoryQueue
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.instruments import Recorder, registry_of
from tests.support.running import handler_of, worker_with

SOON = timedelta(milliseconds=50)


class Broken(Recorder):
    """An instrument that fails at each call."""

    def offering(self, queue: str, headers: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        raise LookupError("offering")

    def handling(self, envelope: Envelope) -> Any:
        raise LookupError("handling")


class BrokenAtTheEnd(Recorder):
    @contextmanager
    def handling(self, envelope: Envelope) -> Iterator[None]:
        try:
            yield
        finally:
            raise LookupError("at the end")


class Hiding(Recorder):
    """An instrument that swallows the handler's exception."""

    @contextmanager
    def handling(self, envelope: Envelope) -> Iterator[None]:
        try:
            yield
        except ValueError:
            self.seen.append("hidden")


def use(settings: LazySettings, *instruments: Any) -> None:
    settings.DELAYED_QUEUE = {"INSTRUMENTS": list(instruments)}


def worked(**functions: Callable[[Envelope], Any]) -> Counts:
    registry = registry_of(**functions)
    return Worker(WorkerOptions(burst=True, poll_interval=SOON, concurrency=1), registry).run()


def fail(envelope: Envelope) -> None:
    raise ValueError("asked to fail")


def pass_by(envelope: Envelope) -> None: ...


class TestOffers:
    def test_each_way_to_offer_passes_by_them(self, settings: LazySettings) -> None:
        use(settings, Recorder("first"), Recorder("second"))
        queue = InMemoryQueue("orders")
        queue.offer_or_update("a", 1)
        queue.offer_if_not_exists("b", 1, headers={"own": True})
        queue.offer_batch(
            [ScheduledMessage("c", 1, headers={"own": True}), ScheduledMessage("d", 1)]
        )
        added = {"first": "orders", "second": "orders"}
        stored = [queue.read(key) for key in "abcd"]
        assert [each and each.headers for each in stored] == [
            added, {"own": True, **added}, {"own": True, **added}, added
        ]  # fmt: skip

    def test_one_that_fails_leaves_the_headers_as_they_were(self, settings, caplog):
        use(settings, Broken(), Recorder())
        queue = InMemoryQueue("orders")
        with caplog.at_level(logging.ERROR, logger="delayed_queue"):
            assert queue.offer_or_update("a", 1, headers={"own": 1}) is OfferOutcome.CREATED
        stored = queue.read("a")
        assert stored is not None
        assert stored.headers == {"own": 1, "recorder": "orders"}
        assert "event=instrument_failed instrument=Broken" in caplog.text


class TestWrapping:
    def test_without_instruments_the_function_is_its_own_wrapper(self) -> None:
        handler = Handler("orders", fail, codec_named("json"), "orders|json")
        assert wrap(handler) is fail

    def test_the_wrapper_is_of_the_same_sort_and_name(self, settings: LazySettings) -> None:
        async def coroutine(envelope: Envelope) -> None: ...

        use(settings, Recorder())
        for function, is_async in ((fail, False), (coroutine, True)):
            handler = Handler("orders", function, codec_named("json"), "orders|json")
            wrapped = Handler("orders", wrap(handler), handler.codec, handler.kind)
            assert wrapped.function is not function
            assert (wrapped.is_async, wrapped.path) == (is_async, handler.path)


@pytest.mark.django_db(transaction=True)
class TestHandlers:
    def test_they_are_nested_in_their_order(self, settings: LazySettings) -> None:
        outer, inner = Recorder("outer"), Recorder("inner")
        inner.seen = outer.seen
        use(settings, outer, inner)
        DelayedQueue("orders").offer_or_update("k", 1)
        assert worked(orders=lambda envelope: outer.seen.append("handler")) == Counts(done=1)
        assert outer.seen == [
            "outer begins k", "inner begins k", "handler", "inner ends k", "outer ends k"
        ]  # fmt: skip

    @pytest.mark.parametrize("is_async", [False, True])
    def test_they_see_each_message_of_a_batch(self, settings: LazySettings, is_async: bool) -> None:
        recorder = Recorder("it")
        use(settings, recorder)

        def handle(batch: Batch) -> None:
            recorder.seen.append("handler")

        async def ahandle(batch: Batch) -> None:
            handle(batch)

        DelayedQueue("orders").offer_batch([ScheduledMessage(key, 1) for key in "ab"])
        handler = handler_of("orders", ahandle if is_async else handle, many=True)
        assert worker_with(handler, burst=True).run() == Counts(done=2)
        assert recorder.seen == ["it begins a", "it begins b", "handler", "it ends b", "it ends a"]

    @pytest.mark.parametrize(
        ("raised", "counts"),
        [
            (ValueError("x"), Counts(failed=1)),
            (Snooze(timedelta(hours=1)), Counts(snoozed=1)),
            (Reject("x"), Counts(dead=1)),
            (SystemExit(3), Counts(failed=1)),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("is_async", [False, True])
    def test_they_see_what_the_handler_raises(self, settings, raised, counts, is_async):
        def handle(envelope: Envelope) -> None:
            raise raised

        async def handle_async(envelope: Envelope) -> None:
            raise raised

        recorder = Recorder()
        use(settings, recorder)
        DelayedQueue("orders").offer_or_update("k", 1)
        assert worked(orders=handle_async if is_async else handle) == counts
        assert recorder.seen == ["recorder begins k", f"recorder saw {type(raised).__name__}"]

    def test_a_failure_cannot_be_hidden(self, settings: LazySettings) -> None:
        hiding = Hiding()
        use(settings, hiding)
        DelayedQueue("orders").offer_or_update("k", 1)
        assert worked(orders=fail) == Counts(failed=1)
        assert hiding.seen == ["hidden"]

    @pytest.mark.parametrize("broken", [Broken, BrokenAtTheEnd])
    @pytest.mark.parametrize(
        ("function", "counts", "end"),
        [(pass_by, Counts(done=1), "ends k"), (fail, Counts(failed=1), "saw ValueError")],
    )
    def test_one_that_fails_changes_neither_the_end_nor_the_others(
        self, settings, caplog, broken, function, counts, end
    ):
        recorder = Recorder()
        use(settings, broken(), recorder, broken())
        DelayedQueue("orders").offer_or_update("k", 1)
        with caplog.at_level(logging.ERROR, logger="delayed_queue"):
            assert worked(orders=function) == counts
        assert recorder.seen == ["recorder begins k", f"recorder {end}"]
        assert caplog.text.count(f"event=instrument_failed instrument={broken.__name__}") >= 2
