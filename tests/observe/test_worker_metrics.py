"""``/metrics`` of a worker at its defaults: the metrics of all its processes."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.observe.metrics import PrometheusInstrument
from tests.observe.test_dashboard import PARTS, asked
from tests.observe.test_metrics import Samples
from tests.support.processes import children_of, wait_until, worker
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def scraped(port: int) -> Samples:
    with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        return Samples.read(response.read().decode())
    return Samples()


def names_asked() -> set[str]:
    """Return the metrics of workers that the dashboard and the alerts name."""
    registry = CollectorRegistry()
    PrometheusInstrument(registry)
    families = {family.name for family in registry.collect()}
    return {
        name
        for name, _ in asked()
        if name.removesuffix("_total") in families
        or any(name.removesuffix(part) in families for part in PARTS)
    }


def offer(keys: range) -> None:
    DelayedQueue("conduct").offer_batch(ScheduledMessage(f"k{each}", "fine") for each in keys)


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_worker_at_its_defaults_serves_what_the_dashboard_asks_for(port, processes):
    options = ["--queue", "conduct", "--health-address", f"127.0.0.1:{port}"]
    queue = DelayedQueue("conduct")
    queue.offer_batch(ScheduledMessage(each, each) for each in ("fail once", "reject"))
    offer(range(20))
    with worker(*options, "--processes", processes):
        wait_until(lambda: not Message.objects.exists())
        wait_until(lambda: scraped(port).of("messages_acknowledged_total", queue="conduct") == 21)
        found = scraped(port)
    served = {name for name, _ in found}
    assert len(names_asked()) > 5
    assert names_asked() <= served
    assert found.of("handler_duration_seconds_count", queue="conduct", outcome="done") == 21


def test_the_counters_of_a_process_outlive_it_and_its_gauges_do_not(port: int) -> None:
    options = ["--queue", "conduct", "--health-address", f"127.0.0.1:{port}"]
    offer(range(10))
    with worker(*options) as process:
        wait_until(lambda: scraped(port).of("messages_acknowledged_total", queue="conduct") == 10)
        DelayedQueue("conduct").offer_or_update("hangs", "hang once")
        wait_until(Effect.objects.filter(key="hangs").exists)
        assert scraped(port).of("handlers_in_progress", queue="conduct") == 1
        (child,) = children_of(process)
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: not Message.objects.exists())
        wait_until(lambda: scraped(port).of("messages_acknowledged_total", queue="conduct") == 11)
        assert scraped(port).of("handlers_in_progress", queue="conduct") == 0
