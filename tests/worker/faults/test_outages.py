"""Workers during an outage of the database: no losses, no busy loop (W7)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

import psutil
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter
from tests.support.ledger import effects, is_drained, offer, terminate_backends
from tests.support.processes import wait_until
from tests.support.programs import Program, working
from tests.support.proxy import Proxy
from tests.support.sampling import sample
from tests.workerapp.models import Effect

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.usefixtures("each_round"),
]

OUTAGE_SECONDS: Final = 3.0
# As a fraction of one core. Idle workers are near 0.01; a busy loop takes 1.
BUSY: Final = 0.3
# Less than the longest sleep of a worker, a quarter of WATCHDOG. After that sleep the worker reads
# its notifications anyway, so a longer limit would hide a missed wakeup.
WOKEN: Final = 20.0
LOSSES: Final[dict[str, Callable[[Proxy], object]]] = {
    "cut": Proxy.cut,
    "terminated": lambda proxy: terminate_backends(),
}
OUTAGES: Final = {"refused": Proxy.refuse, "hung up on": Proxy.hang_up}


def is_handled(key: str) -> bool:
    return Effect.objects.filter(key=key).exists()


@pytest.mark.parametrize("loss", sample(LOSSES, "cut"))
def test_w7_connections_lost_again_and_again_lose_no_message(proxy: Proxy, loss: str) -> None:
    """Every connection of the worker breaks, five times while it drains."""
    keys = offer(DelayedQueue("patient"), 1500)
    with working("--queue", "patient", "--lease", "1", url=proxy.url) as worker:
        for _ in range(5):
            seen = Effect.objects.count()
            wait_until(partial(_went_on, seen))
            LOSSES[loss](proxy)
        wait_until(is_drained)
        assert worker.stop() == 0
    assert set(effects()) == keys
    assert not DeadLetter.objects.exists()


def _went_on(effects_before: int) -> bool:
    return Effect.objects.count() > effects_before or is_drained()


@pytest.mark.parametrize("loss", sample(LOSSES, "cut"))
def test_w7_a_worker_that_lost_its_connection_asleep_listens_again(proxy: Proxy, loss: str) -> None:
    """A NOTIFY wakes it, for its poll interval exceeds this wait."""
    queue = DelayedQueue("ledger")
    with working("--queue", "ledger", "--poll-interval", "600", url=proxy.url):
        wait_until_asleep(proxy, 0)
        seen, accepted = len(proxy.answers), proxy.accepted
        LOSSES[loss](proxy)
        wait_until_asleep(proxy, seen)
        queue.offer_or_update("after", 1)
        wait_until(partial(is_handled, "after"), WOKEN)
        # Its own connections once each, and the handler's: not one more per poll.
        assert proxy.accepted - accepted <= 10


def wait_until_asleep(proxy: Proxy, seen: int) -> None:
    """Return once it has listened, and has finished the polls after that."""
    wait_until(lambda: "LISTEN" in proxy.answers[seen:])
    wait_until(lambda: not answers_within(proxy, 0.3))


def answers_within(proxy: Proxy, seconds: float) -> int:
    """Return the number of statements answered in that time."""
    before = len(proxy.answers)
    threading.Event().wait(seconds)
    return len(proxy.answers) - before


@pytest.mark.parametrize("outage", sample(OUTAGES, "refused"))
def test_w7_a_worker_without_its_database_does_not_spin_and_goes_on_afterwards(proxy, outage):
    """It uses little CPU, and handles messages offered during the outage soon after."""
    queue = DelayedQueue("ledger")
    queue.offer_or_update("before", 1)
    with working("--queue", "ledger", "--poll-interval", "600", url=proxy.url) as worker:
        wait_until(partial(is_handled, "before"))
        OUTAGES[outage](proxy)
        assert share_of_core(worker, OUTAGE_SECONDS) < BUSY
        queue.offer_or_update("after", 1)
        proxy.accept()
        wait_until(partial(is_handled, "after"))
        assert worker.starts == 1


def test_w4_a_stop_during_an_outage_is_in_order(proxy: Proxy) -> None:
    """Coroutines whose results are dropped are cancelled, and leave no traceback."""
    offer(DelayedQueue("frail_awaited"), 1000)
    options = ("--queue", "frail_awaited", "--processes", "0", "--shutdown-timeout", "1")
    with working(*options, url=proxy.url) as worker:
        wait_until(lambda: Effect.objects.count() > 100)
        proxy.refuse()
        wait_until(lambda: worker.has_said("event=database_unavailable"))
        assert worker.stop() == 0
        assert "Traceback" not in worker.log()


def share_of_core(worker: Program, seconds: float) -> float:
    """Measure for ``seconds`` the fraction of one core that the worker's processes use."""
    before = cpu_seconds(worker.tree())
    threading.Event().wait(seconds)
    return (cpu_seconds(worker.tree()) - before) / seconds


def cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(each.cpu_times()[:4]) for each in processes)
