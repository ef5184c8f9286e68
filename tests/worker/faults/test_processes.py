"""Real worker processes under real signals and real outages: nothing is lost (W4, W5, W7)."""

from __future__ import annotations

import os
import signal
from collections import Counter
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection

from delayed_queue import DelayedQueue
from delayed_queue.messages import MessageState
from delayed_queue.models import DeadLetter, Message
from tests.support.ledger import effects, offer
from tests.support.processes import Process, manage, wait_until, worker
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

# A short form by default; `make chaos` repeats each many times.
ROUNDS = range(int(os.environ.get("CHAOS_ROUNDS", "1")))


@pytest.fixture(params=ROUNDS, autouse=True)
def _each_round(request: pytest.FixtureRequest) -> None:
    """Run every test of this module once a round."""


def test_burst_drains_and_exits_0() -> None:
    queue = DelayedQueue("ledger")
    keys = offer(queue, 300)
    with worker("--queue", "ledger", "--burst", "--processes", "0") as process:
        code, output = process.ended()
    assert code == 0
    assert "300 done, 0 to be retried, 0 snoozed, 0 dead, 0 lost" in output
    assert effects() == Counter(keys)
    assert not Message.objects.exists()


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
    assert "ERROR" not in output, "a stop in order is no error"
    done = effects()
    assert set(done.values()) == {1}
    # What was handled was acknowledged, and what was only claimed is due again, uncounted.
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


def test_w4_sigkill_loses_nothing() -> None:
    queue = DelayedQueue("ledger")
    keys = offer(queue, 1000)
    arguments = ("--queue", "ledger", "--lease", "1", "--processes", "0")
    with worker(*arguments) as process:
        wait_until(lambda: Effect.objects.count() > 50)
        process.kill()
        process.wait(timeout=30)
    in_flight = set(Message.objects.filter(lease_id__isnull=False).values_list("key", flat=True))
    with worker(*arguments):
        wait_until(lambda: not Message.objects.exists())
    done = effects()
    assert set(done) == keys
    # Handled twice are only messages whose acknowledgement the kill forestalled.
    assert {key for key, times in done.items() if times > 1} <= in_flight
    assert max(done.values()) <= 2


def test_w5_poison_message_becomes_a_dead_letter_and_spares_the_rest() -> None:
    queue = DelayedQueue("conduct")
    queue.offer_or_update("poison", "die")
    deaths = 0
    while not DeadLetter.objects.exists():
        with worker("--queue", "conduct", "--lease", "0.3", "--processes", "0") as process:
            wait_until(partial(_ended_or_dead_lettered, process))
            deaths += process.poll() == 9
        assert deaths <= 3
    letter = DeadLetter.objects.get()
    assert deaths == 3
    assert letter.reason.startswith("crashed")
    queue.offer_or_update("good", "fine")
    with worker("--queue", "conduct", "--burst", "--processes", "0") as process:
        assert process.ended()[0] == 0
    assert effects()["good"] == 1


def _ended_or_dead_lettered(process: Process) -> bool:
    return process.poll() is not None or DeadLetter.objects.exists()


def test_w7_terminated_backends_are_replaced() -> None:
    queue = DelayedQueue("ledger")
    keys = offer(queue, 1000)
    with worker("--queue", "ledger", "--lease", "1", "--processes", "0") as process:
        wait_until(lambda: Effect.objects.count() > 50)
        for _ in range(3):
            seen = Effect.objects.count()
            _terminate_other_backends()
            wait_until(partial(_went_on, seen))
        wait_until(lambda: not Message.objects.exists())
        # Awake again, by NOTIFY or by polling.
        queue.offer_or_update("afterwards", 1)
        wait_until(lambda: "afterwards" in effects())
        process.send_signal(signal.SIGTERM)
        code, _ = process.ended()
    assert code == 0
    assert set(effects()) >= keys
    assert not DeadLetter.objects.exists()


def _went_on(effects_before: int) -> bool:
    return Effect.objects.count() > effects_before or not Message.objects.exists()


def _terminate_other_backends() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_w3_process_stopped_longer_than_its_lease_cannot_settle() -> None:
    """SIGSTOP, another worker takes the message, SIGCONT: the late result changes nothing."""
    queue = DelayedQueue("stuck", lease_duration=timedelta(hours=1))
    queue.offer_or_update("k", 1)
    arguments = ("--queue", "stuck", "--lease", "0.5", "--shutdown-timeout", "0")
    with worker(*arguments, "--processes", "0") as process:
        wait_until(Effect.objects.exists)
        process.send_signal(signal.SIGSTOP)
        envelope = queue.poll(timeout=10)
        assert envelope is not None
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        assert process.ended()[0] == 0
    stored = queue.read("k")
    assert stored is not None
    assert (stored.state, stored.lease_id) == (MessageState.LEASED, envelope.lease_id)
    assert envelope.acknowledge()


def test_two_workers_share_a_queue_without_overlap() -> None:
    queue = DelayedQueue("ledger")
    keys = offer(queue, 1000)
    arguments = ("--queue", "ledger", "--burst", "--batch-size", "20", "--processes", "0")
    with worker(*arguments) as first, worker(*arguments) as second:
        codes = [first.ended()[0], second.ended()[0]]
    assert codes == [0, 0]
    assert effects() == Counter(keys)


def test_wrong_option_is_said_in_one_line() -> None:
    code, output = manage("runqueueworker", "--concurrency", "0").ended()
    assert code == 2
    assert "error: argument --concurrency: '0' is not a number from 1 to 1,000" in output
