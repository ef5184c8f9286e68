"""The worker's log lines: one for each event, with ids and never a payload (W13)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.logs import quoted
from delayed_queue.observe import signals
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions

SECRET = "4111-1111-1111-1111"


@contextmanager
def at_level(caplog: pytest.LogCaptureFixture, level: int) -> Iterator[None]:
    """Start the log at that level, as a process that starts with it."""
    with caplog.at_level(level, logger="delayed_queue"):
        signals.connect()
        yield
    signals.connect()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log, at every level: the configured one does not always propagate."""
    with at_level(caplog, logging.DEBUG):
        yield caplog


def lines(log: pytest.LogCaptureFixture, level: int, event: str) -> list[str]:
    return [
        record.getMessage()
        for record in log.records
        if record.levelno == level and record.getMessage().startswith(f"event={event} ")
    ]


def burst(queue: str) -> str:
    """Drain the queue; return the worker's name."""
    worker = Worker(WorkerOptions((queue,), burst=True, poll_interval=timedelta(milliseconds=50)))
    worker.run()
    return str(worker)


@pytest.mark.django_db(transaction=True)
class TestOfAWorker:
    def test_each_message_and_each_batch_at_debug(self, log: pytest.LogCaptureFixture) -> None:
        queue = DelayedQueue("ledger")
        queue.offer_batch(ScheduledMessage(f"k{n}", {"card": SECRET}) for n in range(5))
        worker = burst("ledger")
        counts = []
        for batch in lines(log, logging.DEBUG, "batch_acknowledged"):
            head, _, count = batch.removesuffix(f" worker={worker}").rpartition("=")
            assert head == "event=batch_acknowledged queue=ledger count"
            counts.append(int(count))
        assert sum(counts) == 5
        leased = lines(log, logging.DEBUG, "leased")
        acknowledged = lines(log, logging.DEBUG, "acknowledged")
        assert len(leased) == 5
        # The same delivery has the same ids, so the log shows a message's path.
        assert {line.partition(" ")[2] for line in leased} == {
            line.partition(" ")[2] for line in acknowledged
        }
        assert leased[0].startswith("event=leased queue=ledger key=k0 attempt=1 lease=")
        assert SECRET not in log.text

    def test_failures_warn_and_deaths_are_errors(self, log: pytest.LogCaptureFixture) -> None:
        queue = DelayedQueue("conduct")
        queue.offer_or_update("k", "fail")
        while queue.contains_message("k"):
            worker = burst("conduct")
        first, second = lines(log, logging.WARNING, "failed")
        assert first == (
            "event=failed queue=conduct key=k attempt=1 error=ValueError retry_in_s=0.100 "
            f"worker={worker}"
        )
        assert "attempt=2" in second
        [dead] = lines(log, logging.ERROR, "dead")
        assert dead == f"event=dead queue=conduct key=k attempt=3 worker={worker}"
        # The text of an error may hold data of the payload.
        assert "asked to fail" not in log.text

    @pytest.mark.parametrize(
        ("chosen", "debug", "is_shown"),
        [(True, False, True), (False, True, False), (None, True, True), (None, False, False)],
    )
    def test_o6_errors_are_logged_where_the_settings_say_so(
        self, log, settings, chosen, debug, is_shown
    ):
        """Tracebacks of failures and deaths; without them, no text of the errors."""
        settings.DELAYED_QUEUE = {**settings.DELAYED_QUEUE, "LOG_ERRORS": chosen}
        settings.DEBUG = debug
        queue = DelayedQueue("conduct")
        queue.offer_or_update("k", "fail")
        while queue.contains_message("k"):
            burst("conduct")
        told: list[Any] = [each for each in log.records if hasattr(each, "event")]
        ended = [each for each in told if each.event in ("failed", "dead")]
        assert [each.event for each in ended] == ["failed", "failed", "dead"]
        assert [each.exc_info is not None for each in ended] == [is_shown] * 3
        assert ("asked to fail" in log.text) is is_shown
        assert ("Traceback" in log.text) is is_shown
        fields = ended[0].fields
        assert (fields["queue"], fields["key"], fields["attempt"]) == ("conduct", "k", 1)

    def test_o6_signals_bring_the_exception_itself(self) -> None:
        """For failures, and for the death that follows them."""
        brought: list[tuple[str, Any]] = []

        def note_failure(error: BaseException, **kwargs: Any) -> None:
            brought.append(("failed", error))

        def note_death(error: BaseException, **kwargs: Any) -> None:
            brought.append(("dead", error))

        signals.failed.connect(note_failure)
        signals.dead.connect(note_death)
        try:
            queue = DelayedQueue("conduct")
            queue.offer_or_update("k", "fail")
            while queue.contains_message("k"):
                burst("conduct")
        finally:
            signals.failed.disconnect(note_failure)
            signals.dead.disconnect(note_death)
        assert [name for name, _ in brought] == ["failed", "failed", "dead"]
        assert {type(error) for _, error in brought} == {ValueError}
        assert {str(error) for _, error in brought} == {"asked to fail"}

    def test_start_and_stop_are_told(self, log: pytest.LogCaptureFixture) -> None:
        worker = burst("ledger")
        assert lines(log, logging.INFO, "worker_started") == [
            f"event=worker_started worker={worker}"
        ]
        assert lines(log, logging.INFO, "worker_stopped") == [
            f"event=worker_stopped worker={worker}"
        ]


@pytest.mark.usefixtures("no_other_receivers")
@pytest.mark.parametrize(
    ("signal", "level"), [(signals.leased, logging.DEBUG), (signals.acknowledged, logging.DEBUG)]
)
def test_a_level_that_is_off_costs_nothing(signal, level, caplog):
    with at_level(caplog, level + 1):
        assert not signal.has_listeners()
    with at_level(caplog, level):
        assert signal.has_listeners()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("order-17", "order-17"),
        ("eu/orders:17.b", "eu/orders:17.b"),
        ("żółw", "żółw"),
        ("", '""'),
        ("a b", '"a b"'),
        ("a=b", '"a=b"'),
        ('a"b', '"a\\"b"'),
        ("k\nevent=dead key=other", '"k\\nevent=dead key=other"'),
        ("k\u2028x", '"k\\u2028x"'),
        ("k\x85x", '"k\\u0085x"'),
        ("a\u202ecod.exe", '"a\\u202ecod.exe"'),
        ("\u2066k\u2069", '"\\u2066k\\u2069"'),
        ("\u061ck\u200f", '"\\u061ck\\u200f"'),
        ("k\u200b", '"k\\u200b"'),
        ("Straße-Ærø", "Straße-Ærø"),
    ],
)
def test_values_that_could_break_a_line_are_quoted(value: str, written: str) -> None:
    assert quoted(value) == written


@pytest.mark.django_db(transaction=True)
def test_n4_a_poll_is_one_line_with_count_and_keys_also_when_it_finds_nothing(
    log: pytest.LogCaptureFixture, django_assert_num_queries: Any
):
    """An empty poll is one statement and one line; once a second it also reads the limits."""
    queue = DelayedQueue("polled")
    with django_assert_num_queries(2):
        queue.try_poll_many(2)
    with django_assert_num_queries(1):
        queue.try_poll_many(2)
    queue.offer_batch([ScheduledMessage("a b", SECRET), ScheduledMessage("c", SECRET)])
    queue.try_poll_many(5)

    assert lines(log, logging.DEBUG, "polled") == [
        'event=polled queue=polled count=0 keys=""',
        'event=polled queue=polled count=0 keys=""',
        'event=polled queue=polled count=2 keys="a b,c"',
    ]
