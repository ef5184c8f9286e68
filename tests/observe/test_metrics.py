"""Prometheus metrics of workers and queues, in one process and in several (W13)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from django.conf import LazySettings
from django.core.checks import Error
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from delayed_queue import DelayedQueue, Envelope, Reject, ScheduledMessage, Snooze
from delayed_queue.checks import check_instruments
from delayed_queue.models import Message, StoredBatch
from delayed_queue.observe.metrics import (
    TOP_GROUPS,
    PrometheusInstrument,
    QueueCollector,
    exposition,
)
from delayed_queue.observe.overview import MAX_KINDS
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from delayed_queue.worker.process.health import HealthReport, HealthServer
from tests.support import documents
from tests.support.concurrency import raw_connection
from tests.support.factories import DeadLetterFactory, MessageFactory, from_now, worker_row
from tests.support.instruments import registry_of
from tests.support.processes import LEAN, ROOT, environment, wait_until

SOON = timedelta(milliseconds=50)


class Samples(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """The samples of an exposition, found by name and labels."""

    @classmethod
    def read(cls, text: str) -> Samples:
        return cls(
            # As Prometheus does, which treats an empty label as missing.
            (
                (sample.name, frozenset(each for each in sample.labels.items() if each[1])),
                sample.value,
            )
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        )

    def of(self, name: str, **labels: str) -> float | None:
        return self.get((f"delayed_queue_{name}", frozenset(labels.items())))


def samples(registry: CollectorRegistry) -> Samples:
    return Samples.read(generate_latest(registry).decode())


@pytest.fixture
def registry(settings: LazySettings) -> CollectorRegistry:
    """A registry for the instrument of the settings."""
    made = CollectorRegistry()
    settings.DELAYED_QUEUE = {"INSTRUMENTS": [PrometheusInstrument(made)]}
    return made


def worked(**functions: Callable[[Envelope], Any]) -> None:
    options = WorkerOptions(burst=True, poll_interval=SOON)
    Worker(options, registry_of(**functions)).run()


def behave(envelope: Envelope) -> None:
    match envelope.payload:
        case "fail":
            raise ValueError
        case "snooze":
            raise Snooze(timedelta(hours=1))
        case "reject":
            raise Reject("no")


@pytest.mark.django_db(transaction=True)
class TestInstrument:
    def test_messages_are_counted_by_their_ends(self, registry: CollectorRegistry) -> None:
        queue = DelayedQueue("orders")
        payloads = ["fine", "fine", "fine", "fail", "snooze", "reject"]
        queue.offer_batch(ScheduledMessage(f"k{n}", each) for n, each in enumerate(payloads))
        worked(orders=behave)
        found = samples(registry)
        ends = ("leased", "acknowledged", "failed", "dead")
        counted = {end: found.of(f"messages_{end}_total", queue="orders") for end in ends}
        assert counted == {"leased": 6, "acknowledged": 3, "failed": 1, "dead": 1}
        outcomes = {
            outcome: found.of("handler_duration_seconds_count", queue="orders", outcome=outcome)
            for outcome in ("done", "failed", "snoozed", "rejected")
        }
        assert outcomes == {"done": 3, "failed": 1, "snoozed": 1, "rejected": 1}

    def test_durations_and_lateness_are_in_seconds(self, registry: CollectorRegistry) -> None:
        MessageFactory.create(kind="orders|json", scheduled_at=from_now(minutes=-10))
        worked(orders=behave)
        found = samples(registry)
        lateness = found.of("lateness_seconds_sum", queue="orders")
        assert lateness is not None
        assert 600 <= lateness < 660
        assert found.of("lateness_seconds_bucket", queue="orders", le="300.0") == 0
        assert found.of("lateness_seconds_bucket", queue="orders", le="900.0") == 1
        duration = found.of("handler_duration_seconds_sum", queue="orders", outcome="done")
        assert duration is not None
        assert 0 < duration < 60

    def test_what_is_due_on_a_clock_ahead_is_not_early(self, registry: CollectorRegistry) -> None:
        queue = DelayedQueue("orders", clock=lambda: from_now(days=1))
        queue.offer_or_update("k", 1)
        envelope = queue.try_poll()
        assert envelope is not None
        with PrometheusInstrument(registry).handling(envelope):
            pass
        assert samples(registry).of("lateness_seconds_sum", queue="orders") == 0

    def test_running_handlers_are_gauged(self, registry: CollectorRegistry) -> None:
        seen: list[float | None] = []

        def look(envelope: Envelope) -> None:
            seen.append(samples(registry).of("handlers_in_progress", queue="orders"))
            raise ValueError

        DelayedQueue("orders").offer_or_update("k", 1)
        worked(orders=look)
        assert seen == [1]
        assert samples(registry).of("handlers_in_progress", queue="orders") == 0

    def test_two_instruments_of_a_registry_count_once(self, registry: CollectorRegistry) -> None:
        PrometheusInstrument(registry)
        DelayedQueue("orders").offer_or_update("k", 1)
        worked(orders=behave)
        assert samples(registry).of("messages_acknowledged_total", queue="orders") == 1


@pytest.mark.django_db
class TestCollector:
    @pytest.fixture
    def scrape(self) -> Callable[..., Samples]:
        def scrape(*queues: str, **options: Any) -> Samples:
            made = CollectorRegistry()
            made.register(QueueCollector(queues, **options))
            return samples(made)

        return scrape

    def test_registering_asks_nothing(self) -> None:
        with CaptureQueriesContext(connection) as captured:
            CollectorRegistry(auto_describe=True).register(QueueCollector())
        assert len(captured) == 0

    def test_the_groups_held_back_the_longest_are_named(self, scrape):
        queue = DelayedQueue("orders")
        for number in range(12):
            MessageFactory.create(due=True, group=f"group-{number:02}")
        MessageFactory.create(due=True, kind="other|json", group="free")
        assert scrape().of("groups_held", reason="paused", queue="orders") is None
        for number in range(12):
            queue.groups.pause(f"group-{number:02}")
        found, labels = scrape(), {"queue": "orders", "kind": "orders|json"}
        assert found.of("groups_held", reason="paused", **labels) == 12
        held = [name for name, _ in found if name == "delayed_queue_group_held_seconds"]
        assert len(held) == TOP_GROUPS
        age = found.of("group_held_seconds", reason="paused", group="group-00", **labels)
        assert age is not None
        assert age > 0

    def test_b12_batches_are_counted_by_state_with_the_age_of_the_oldest(self, scrape):
        queue = DelayedQueue("orders")
        labels = {"queue": "orders", "kind": "orders|json"}
        assert scrape().of("batches", state="open", **labels) is None
        for number in range(3):
            batch = queue.batch(ScheduledMessage("report", None))
            batch.offer_or_update(f"k{number}", None)
        batch.close()
        oldest = StoredBatch.objects.earliest("pk")
        StoredBatch.objects.filter(pk=oldest.pk).update(created_at=from_now(hours=-1))
        found = scrape()
        assert found.of("batches", state="open", **labels) == 2
        assert found.of("batches", state="closed", **labels) == 1
        age = found.of("oldest_batch_age_seconds", state="open", **labels)
        assert age is not None
        assert 3600 <= age < 3660
        assert scrape("mail").of("batches", state="open", **labels) is None
        assert scrape("orders").of("batches", state="open", **labels) == 2

    def test_o5_who_holds_the_oldest_snapshot_is_told_by_its_sort(self, scrape):
        with raw_connection() as holder:
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT 1")
            assert scrape().of("snapshot_scan_seconds", holder="session", queue="orders") is None
            worker_row(scanned="orders", scan_seconds=0.154)
            found = scrape()
        assert found.of("snapshot_scan_seconds", holder="session", queue="orders") == 0.154
        assert found.of("snapshot_transactions", holder="session") is not None
        assert found.of("snapshot_age_seconds", holder="session") is not None
        assert found.of("snapshot_dead_rows", holder="session") is not None

    def test_queues_are_counted_by_state(self, scrape: Callable[..., Samples]) -> None:
        MessageFactory.create_batch(3, due=True)
        MessageFactory.create_batch(2, scheduled=True)
        MessageFactory.create(leased=True)
        DeadLetterFactory.create_batch(4)
        found = scrape()
        labels = {"queue": "orders", "kind": "orders|json"}
        states = {
            state: found.of("messages", state=state, **labels)
            for state in ("due", "scheduled", "leased")
        }
        assert states == {"due": 3, "scheduled": 2, "leased": 1}
        assert found.of("dead_letters", **labels) == 4
        assert found.of("counts_cut", **labels) == 0
        assert found.of("up", database="default") == 1
        age = found.of("oldest_due_age_seconds", **labels)
        assert age is not None
        assert 60 <= age < 120

    def test_only_the_queues_that_were_named(self, scrape: Callable[..., Samples]) -> None:
        MessageFactory.create()
        MessageFactory.create(kind="bills|json")
        found = scrape("bills")
        assert found.of("messages", queue="bills", kind="bills|json", state="due") == 1
        assert not any(("queue", "orders") in labels for _, labels in found)

    def test_counts_stop_at_the_cap_and_say_so(self, scrape: Callable[..., Samples]) -> None:
        MessageFactory.create_batch(5)
        found = scrape("orders", cap=3)
        labels = {"queue": "orders", "kind": "orders|json"}
        assert found.of("messages", state="due", **labels) == 3
        assert found.of("counts_cut", **labels) == 1

    def test_a_scrape_costs_few_statements_and_few_queues(self, scrape):
        for number in range(MAX_KINDS + 20):
            MessageFactory.create(kind=f"kind-{number}|json")
        with CaptureQueriesContext(connection) as captured:
            found = scrape()
        assert len(captured) <= 9
        assert len([1 for name, _ in found if name == "delayed_queue_dead_letters"]) == MAX_KINDS

    def test_a_django_view_can_serve_it(self) -> None:
        def metrics(request: HttpRequest) -> HttpResponse:
            body, content_type = exposition(
                QueueCollector(), accept=request.headers.get("Accept", "")
            )
            return HttpResponse(body, content_type=content_type)

        MessageFactory.create()
        plain = metrics(RequestFactory().get("/metrics"))
        assert plain["Content-Type"].startswith("text/plain")
        labels = {"queue": "orders", "kind": "orders|json", "state": "due"}
        found = Samples.read(plain.content.decode())
        assert found.of("messages", **labels) == 1
        assert ("process_cpu_seconds_total", frozenset()) in found
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        asked = metrics(RequestFactory().get("/metrics", headers=accept))
        assert asked["Content-Type"].startswith("application/openmetrics-text")


@pytest.mark.django_db(transaction=True)
class TestOutage:
    def test_a_scrape_outlives_the_database(self, registry: CollectorRegistry) -> None:
        registry.register(QueueCollector(["orders"]))
        MessageFactory.create()
        with refused():
            found = samples(registry)
        assert found.of("up", database="default") == 0
        assert found.of("messages", queue="orders", kind="orders|json", state="due") is None
        assert samples(registry).of("up", database="default") == 1

    def test_a_lost_connection_costs_one_scrape(self, registry: CollectorRegistry) -> None:
        registry.register(QueueCollector(["orders"]))
        up = [samples(registry).of("up", database="default")]
        pid = connection.connection.info.backend_pid
        with raw_connection() as other:
            other.execute("SELECT pg_terminate_backend(%s)", [pid])
        up += [samples(registry).of("up", database="default") for _ in range(2)]
        assert up == [1, 0, 1]


@pytest.mark.django_db(transaction=True)
def test_a_scrape_of_a_worker_leaves_no_connection_behind() -> None:
    collector = QueueCollector(["orders"])
    REGISTRY.register(collector)
    server = HealthServer("127.0.0.1", 0, lambda: HealthReport("w", True, ()))
    server.start()
    before = backends()
    try:
        with urlopen("http://{}:{}/metrics".format(*server.address), timeout=10) as response:  # noqa: S310
            assert Samples.read(response.read().decode()).of("up", database="default") == 1
    finally:
        server.stop()
        REGISTRY.unregister(collector)
    wait_until(lambda: backends() <= before)


def backends() -> set[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
        return {pid for (pid,) in cursor.fetchall()}


@contextmanager
def refused() -> Iterator[None]:
    """Refuse new connections, and break the existing one."""
    port = connection.settings_dict["PORT"]
    connection.close()
    connection.settings_dict["PORT"] = "1"
    try:
        yield
    finally:
        connection.settings_dict["PORT"] = port
        connection.close()


def start(queue: str, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.instrumented_worker", queue],
        cwd=ROOT,
        env={**environment(), **LEAN, "PROMETHEUS_MULTIPROC_DIR": str(directory)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
class TestProcesses:
    def test_counts_of_all_processes_are_added_up(self, tmp_path: Path) -> None:
        queue = DelayedQueue("orders")
        text = ""
        for number in range(3):
            queue.offer_batch([ScheduledMessage(f"k{number}-{n}", n) for n in range(10)])
            text, _ = start("orders", tmp_path).communicate(timeout=60)
        assert not Message.objects.exists()
        found = Samples.read(text)
        assert found.of("messages_acknowledged_total", queue="orders") == 30
        count = found.of("handler_duration_seconds_count", queue="orders", outcome="done")
        assert count == 30
        assert found.of("handlers_in_progress", queue="orders") == 0

    def test_a_dead_process_is_forgotten(self, tmp_path: Path) -> None:
        DelayedQueue("stuck").offer_or_update("k", "hang")
        with start("stuck", tmp_path) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "hanging\n"
            process.kill()
        script = (
            "from delayed_queue.observe.metrics import exposition, forget_process\n"
            "print(exposition()[0].decode(), end='')\n"
            f"forget_process({process.pid})\n"
            "print('---')\n"
            "print(exposition()[0].decode(), end='')\n"
        )
        done = subprocess.run(
            [sys.executable, "manage.py", "shell", "--no-imports", "-c", script],
            cwd=ROOT, timeout=60, check=True, stdout=subprocess.PIPE, text=True,
            env={**environment(), **LEAN, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        )  # fmt: skip
        before, _, after = done.stdout.partition("---\n")
        assert Samples.read(before).of("handlers_in_progress", queue="stuck") == 1
        assert Samples.read(after).of("handlers_in_progress", queue="stuck") is None
        assert Samples.read(after).of("messages_leased_total", queue="stuck") == 1


@pytest.mark.parametrize(
    ("module", "package"), [("metrics", "prometheus_client"), ("tracing", "opentelemetry")]
)
def test_without_the_library_the_extra_is_named(module, package, settings, monkeypatch):
    monkeypatch.delitem(sys.modules, f"delayed_queue.observe.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails
    settings.DELAYED_QUEUE = {"INSTRUMENTS": [f"delayed_queue.observe.{module}.Instrument"]}
    [message] = check_instruments()
    assert isinstance(message, Error)
    assert (
        f"delayed_queue.observe.{module} needs the extra [metrics]: "
        f"pip install 'django-delayed-queue[metrics]' (" in message.msg
    )
    assert package in message.msg


class TestDocumentation:
    """The page names the existing metrics, and its rules use no others."""

    page = documents.DOCS / "guides/metrics.md"

    @pytest.fixture
    def families(self, db: None) -> dict[str, tuple[str, str]]:
        """Return the type and the help text of each metric."""
        made = CollectorRegistry()
        PrometheusInstrument(made)
        made.register(QueueCollector(["orders"]))
        return {each.name: (each.type, each.documentation) for each in made.collect()}

    def test_the_table_is_that_of_the_code(self, families: dict[str, tuple[str, str]]) -> None:
        rows = documents.table(self.page, "metric", "type", "labels", "meaning")
        documented = {documents.code(row[0]): row[1] for row in rows}
        assert documented == {name: kind for name, (kind, _) in families.items()}
