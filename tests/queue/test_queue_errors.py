"""Q27, Q33, Q34: errors of the database, said by Django's own hook for statements.

Real outages are in ``tests/db/faults``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.conf import LazySettings
from django.db import OperationalError, connection, transaction

from delayed_queue import DelayedQueue, OfferOutcome, ScheduledMessage
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.retries import Backoff
from delayed_queue.testing import assert_offered
from tests.queue.contract.support import leased

CREATED = OfferOutcome.CREATED


@pytest.fixture
def queue() -> DelayedQueue:
    return DelayedQueue("orders")


class Failing:
    """A database that fails the first times with an SQLSTATE, by Django's own hook."""

    def __init__(self, sqlstate: str, times: int) -> None:
        self.error = psycopg.errors.lookup(sqlstate)
        self.times = times
        self.calls = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.calls += 1
        if self.calls > self.times:
            return execute(sql, params, many, context)
        try:
            raise self.error("as the server would say")
        except psycopg.Error as error:
            raise OperationalError(str(error)) from error


@pytest.fixture
def quick(settings: LazySettings) -> None:
    """Repeat a failed call five times, within milliseconds."""
    backoff = Backoff(initial=timedelta(microseconds=100), maximum=timedelta(milliseconds=1))
    settings.DELAYED_QUEUE = {"BACKOFF": backoff, "NOTIFY": False}


@contextmanager
def failing(sqlstate: str, times: int) -> Iterator[Failing]:
    fails = Failing(sqlstate, times)
    with connection.execute_wrapper(fails):
        yield fails


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("quick")
class TestErrors:
    @pytest.mark.parametrize("sqlstate", ["40001", "40P01", "08006", "57P01"])
    def test_q33_transient_errors_are_retried(self, queue: DelayedQueue, sqlstate: str):
        with failing(sqlstate, times=5) as fails:
            assert queue.offer_or_update("a", 1) is CREATED
        assert fails.calls == 6
        assert_offered(queue, "a", 1)

    def test_q33_at_last_there_is_one_error_with_the_cause(self, queue: DelayedQueue):
        with failing("57P03", times=6) as fails, pytest.raises(ResourceUnavailable) as raised:
            queue.try_poll()
        assert fails.calls == 6
        assert isinstance(raised.value.__cause__, OperationalError)
        assert "as the server would say" in str(raised.value)

    def test_q33_never_inside_a_callers_transaction(self, queue: DelayedQueue):
        with (
            transaction.atomic(),
            failing("40001", times=1) as fails,
            pytest.raises(OperationalError, match="as the server would say"),
        ):
            queue.offer_or_update("a", 1)
        assert fails.calls == 1

    def test_q27_an_acknowledgement_that_fails_is_an_error(self, queue: DelayedQueue):
        queue.offer_or_update("a", 1)
        envelope = leased(queue)
        with failing("08006", times=100), pytest.raises(ResourceUnavailable):
            envelope.acknowledge()
        assert_offered(queue, "a", state="leased")
        assert envelope.acknowledge()

    @pytest.mark.parametrize("sqlstate", ["23505", "42P01", "22003", "57014"])
    def test_q34_other_errors_are_not_retried(self, queue: DelayedQueue, sqlstate: str):
        with failing(sqlstate, times=1) as fails, pytest.raises(OperationalError):
            queue.offer_or_update("a", 1)
        assert fails.calls == 1

    def test_q34_errors_of_a_codec_are_not_retried(self):
        class Moody:
            name = "moody"
            calls = 0

            def encode(self, payload: Any) -> bytes:
                self.calls += 1
                raise KeyError("not today")

            def decode(self, data: bytes) -> Any:
                return data

        codec = Moody()
        with pytest.raises(KeyError, match="not today"):
            DelayedQueue("orders", codec=codec).offer_or_update("a", 1)
        assert codec.calls == 1

    def test_q16_each_try_of_a_claim_has_a_lease_of_its_own(self, queue: DelayedQueue):
        """What a lost answer had leased must not be deleted with what was seen."""
        queue.offer_batch([ScheduledMessage("unseen", 1), ScheduledMessage("seen", 1)])
        calls = []

        def lose_the_first_answer(execute: Any, *args: Any) -> Any:
            answer = execute(*args)
            calls.append(args)
            if len(calls) == 1:
                raise OperationalError("lost") from psycopg.errors.ConnectionFailure("lost")
            return answer

        with connection.execute_wrapper(lose_the_first_answer):
            batch = queue.try_poll_many(1)
        assert [envelope.key for envelope in batch] == ["seen"]
        assert batch.acknowledge() == 1
        assert_offered(queue, "unseen", state="leased")
