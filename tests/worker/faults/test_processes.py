"""Real workers under real signals and outages: no message is lost (W4, W5, W7)."""

from __future__ import annotations

import os
import signal

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import Message
from tests.support.ledger import effects, offer
from tests.support.processes import wait_until, worker
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

# A short form by default; `make chaos` repeats each many times.
ROUNDS = range(int(os.environ.get("CHAOS_ROUNDS", "1")))


@pytest.fixture(params=ROUNDS, autouse=True)
def _each_round(request: pytest.FixtureRequest) -> None:
    """Run every test of this module once per round."""


def test_w10_unknown_queue_exits_1_and_names_the_known_ones() -> None:
    with worker("--queue", "unheard") as process:
        code, output = process.ended()
    assert code == 1
    assert "'unheard'" in output
    assert "ledger" in output


def test_w4_sigterm_finishes_what_is_in_flight_and_exits_0() -> None:
    queue = DelayedQueue("ledger")
    offer(queue, 5000)
    with worker("--queue", "ledger", "--concurrency", "2") as process:
        wait_until(Effect.objects.exists)
        process.send_signal(signal.SIGTERM)
        code, output = process.ended()
    assert code == 0
    assert "ERROR" not in output, "an orderly stop is no error"
    done = effects()
    assert set(done.values()) == {1}
    # Handled messages were acknowledged; claimed ones are due again without a counted attempt.
    left = Message.objects.values_list("attempts", "lease_id")
    assert len(left) == 5000 - len(done)
    assert set(left) == {(0, None)}


def test_w4_second_signal_exits_now() -> None:
    DelayedQueue("stuck").offer_or_update("k", 1)
    with worker("--queue", "stuck", "--shutdown-timeout", "600") as process:
        wait_until(Effect.objects.exists)
        process.send_signal(signal.SIGTERM)

        # Signals that arrive before Python has handled the first one count as one.
        def has_ended() -> bool:
            process.send_signal(signal.SIGTERM)
            return process.poll() is not None

        wait_until(has_ended)
        code, _ = process.ended()
    assert code == 128 + signal.SIGTERM
