"""Prometheus metrics: an instrument for workers, a collector for queues, their exposition."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import DEFAULT_DB_ALIAS, Error

from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import drop_if_lost
from delayed_queue.exceptions import DelayedQueueError, needing
from delayed_queue.facade import DelayedQueue
from delayed_queue.instruments import Headers, ending
from delayed_queue.messages import Envelope
from delayed_queue.observe import signals
from delayed_queue.observe.overview import QueueDepth, measure
from delayed_queue.observe.snapshots import Snapshot, oldest_snapshot
from delayed_queue.queue.groups import HeldGroup
from delayed_queue.queue.models import Limit

with needing("metrics", "delayed_queue.observe.metrics"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, values
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
    from prometheus_client.registry import Collector

_DURATIONS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LATENESS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 3, 5, 10, 30, 60, 300, 900, 3600)
# Of each queue so many groups have a metric of their own.
TOP_GROUPS: Final = 10
# By queue and kind.
Held = dict[tuple[str, str], list[HeldGroup]]
_ENDS: Final = {
    "leased": "Messages that workers leased.",
    "acknowledged": "Messages that were handled and deleted.",
    "failed": "Attempts that failed and will be retried.",
    "dead": "Messages that became dead letters in a worker.",
    "refused": "Attempts whose result the database refused to write.",
}


class PrometheusInstrument:
    """Measures the handlers of this process, and counts what becomes of its messages.

    Any number of instruments of one registry share its metrics, and nothing is counted twice.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._metrics = _metrics_of(registry)

    def offering(self, queue: str, headers: Headers | None) -> Headers | None:
        return headers

    @contextmanager
    def handling(self, envelope: Envelope) -> Iterator[None]:
        metrics, labels = self._metrics, (envelope.queue, envelope.handler)
        # The database's clock set the due time, this host's clock reads it: small skews show.
        metrics.lateness.labels(*labels).observe(max(time.time() - envelope.due_at_ms / 1000, 0))
        outcome = ending(None)
        started_at = time.perf_counter()
        try:
            with metrics.in_progress.labels(*labels).track_inprogress():
                yield
        except BaseException as error:
            outcome = ending(error)
            raise
        finally:
            metrics.duration.labels(*labels, outcome).observe(time.perf_counter() - started_at)


class _Metrics:
    """The metrics of one registry, and the receivers of signals that count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.duration = Histogram(
            "delayed_queue_handler_duration_seconds", "Run time of handlers, by outcome.",
            ["queue", "handler", "outcome"], buckets=_DURATIONS, registry=registry,
        )  # fmt: skip
        self.lateness = Histogram(
            "delayed_queue_lateness_seconds",
                "Delay from the due time to the start of the handler.",
            ["queue", "handler"], buckets=_LATENESS, registry=registry,
        )  # fmt: skip
        self.in_progress = Gauge(
            "delayed_queue_handlers_in_progress", "Handlers that are running.",
            ["queue", "handler"], multiprocess_mode="livesum", registry=registry,
        )  # fmt: skip
        self._counters = {
            name: Counter(f"delayed_queue_messages_{name}", text, ["queue"], registry=registry)
            for name, text in _ENDS.items()
        }
        signals.leased.connect(self._leased)
        signals.acknowledged.connect(self._acknowledged)
        signals.failed.connect(self._failed)
        signals.dead.connect(self._dead)
        signals.refused.connect(self._refused)

    def _leased(self, *, envelopes: Sequence[Envelope], **kwargs: Any) -> None:
        self._count("leased", envelopes)

    def _acknowledged(self, *, envelopes: Sequence[Envelope], **kwargs: Any) -> None:
        self._count("acknowledged", envelopes)

    def _failed(self, *, envelope: Envelope, **kwargs: Any) -> None:
        self._count("failed", [envelope])

    def _dead(self, *, envelope: Envelope, **kwargs: Any) -> None:
        self._count("dead", [envelope])

    def _refused(self, *, envelope: Envelope, **kwargs: Any) -> None:
        self._count("refused", [envelope])

    def _count(self, name: str, envelopes: Iterable[Envelope]) -> None:
        for queue, count in Tally(each.queue for each in envelopes).items():
            self._counters[name].labels(queue).inc(count)


_known: Final[WeakKeyDictionary[CollectorRegistry, _Metrics]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def _metrics_of(registry: CollectorRegistry) -> _Metrics:
    """Return the registry's metrics: a registry refuses to have the same names twice."""
    with _lock:
        if registry not in _known:
            _known[registry] = _Metrics(registry)
        return _known[registry]


class QueueCollector(Collector):
    """Counts queues when it is scraped, in few statements and no further than a cap.

    ``queues`` names those to count; without it, all with messages, dead letters or a handler,
    at most a hundred. When the database cannot be asked, ``delayed_queue_up`` is 0 and the
    other metrics of the scrape are there all the same.
    """

    def __init__(
        self, queues: Iterable[str] = (), *, cap: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        self._queues = tuple(queues)
        self._cap = cap
        self._using = using

    def describe(self) -> Iterable[Metric]:
        """Nothing: without this, registering would ask the database for what there is."""
        return []

    def collect(self) -> Iterable[Metric]:
        found = self._found()
        up = GaugeMetricFamily(
            "delayed_queue_up", "1 if the database answered.", labels=["database"]
        )
        up.add_metric([self._using], found is not None)
        depths, snapshot, held = found or ([], None, {})
        return [
            up,
            *_families(depths),
            *_families_of(snapshot),
            *_families_of_groups(held, self._using),
        ]

    def _found(self) -> tuple[list[QueueDepth], Snapshot | None, Held] | None:
        try:
            # Nobody else would: outside a request, a lost connection is not replaced.
            drop_if_lost(self._using)
            depths = measure(self._queues, cap=self._cap, using=self._using)[0]
            return depths, oldest_snapshot(self._using), _held(depths, self._using)
        except (Error, DelayedQueueError):
            return None


def _families(found: list[QueueDepth]) -> list[Metric]:
    names = ["queue", "kind"]
    messages = GaugeMetricFamily(
        "delayed_queue_messages", "Messages in the queue.", labels=[*names, "state"]
    )
    letters = GaugeMetricFamily(
        "delayed_queue_dead_letters", "Dead letters of the queue.", labels=names
    )
    age = GaugeMetricFamily(
        "delayed_queue_oldest_due_age_seconds", "Lateness of the earliest due message.",
        labels=names,
    )  # fmt: skip
    cut = GaugeMetricFamily(
        "delayed_queue_counts_cut", "1 if a count of the queue stopped at its cap.",
        labels=names,
    )  # fmt: skip
    for each in found:
        labels = [each.name.queue, each.kind]
        for state in ("due", "scheduled", "leased"):
            messages.add_metric([*labels, state], each.counts[state].value)
        letters.add_metric(labels, each.dead.value)
        late_by = each.oldest_due_age
        age.add_metric(labels, 0 if late_by is None else late_by.total_seconds())
        cut.add_metric(labels, any(count.is_cut for count in each.counts.values()))
    return [messages, letters, age, cut]


def _held(depths: Sequence[QueueDepth], using: str) -> Held:
    """Return the groups that are held back of those queues that have limits, the longest first."""
    names = {each.kind: each.name.queue for each in depths}
    limited = Limit.objects.using(using).filter(kind__in=names).values_list("kind", flat=True)
    found: Held = {}
    for kind in sorted(set(limited)):
        groups = DelayedQueue(names[kind], kind=kind, using=using).groups.held()
        found[names[kind], kind] = [each for each in groups if each.reason]
    return found


def _families_of_groups(held: Held, using: str) -> list[Metric]:
    number = GaugeMetricFamily(
        "delayed_queue_groups_held",
        "Held groups among the first hundred that have messages.",
        labels=["queue", "kind", "reason"],
    )
    age = GaugeMetricFamily(
        "delayed_queue_group_held_seconds",
        "Lateness of the earliest message in held groups, the longest held first.",
        labels=["queue", "kind", "group", "reason"],
    )
    now = database_now(using).timestamp() if held else 0.0
    for labels, groups in held.items():
        for reason, count in Tally(each.reason for each in groups).items():
            number.add_metric([*labels, reason], count)
        for each in groups[:TOP_GROUPS]:
            late = 0.0 if each.due_since is None else max(now - each.due_since / 1000, 0.0)
            age.add_metric([*labels, each.name, each.reason], late)
    return [number, age]


def _families_of(snapshot: Snapshot | None) -> list[Metric]:
    age = GaugeMetricFamily(
        "delayed_queue_snapshot_age_seconds",
        "Age of the oldest snapshot that keeps deleted messages from being vacuumed.",
        labels=["holder"],
    )
    transactions = GaugeMetricFamily(
        "delayed_queue_snapshot_transactions",
        "Transactions started since that snapshot.",
        labels=["holder"],
    )
    dead = GaugeMetricFamily(
        "delayed_queue_snapshot_dead_rows",
        "Dead row versions of messages that are not vacuumed yet.",
        labels=["holder"],
    )
    scan = GaugeMetricFamily(
        "delayed_queue_snapshot_scan_seconds",
        "Time of a claim from the start of the queue, for the slowest queue.",
        labels=["holder", "queue"],
    )
    if snapshot is not None:
        seconds = 0.0 if snapshot.age is None else snapshot.age.total_seconds()
        age.add_metric([snapshot.holder], seconds)
        transactions.add_metric([snapshot.holder], snapshot.transactions)
        dead.add_metric([snapshot.holder], snapshot.dead_rows)
        if snapshot.scanned:
            scan.add_metric([snapshot.holder, snapshot.scanned], snapshot.scan_seconds)
    return [age, transactions, dead, scan]


_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"


class _Sharing:
    """The metrics that a supervisor and its processes share; ``process`` is 0 in the supervisor."""

    is_on = False
    process = 0


def share_metrics(directory: str) -> None:
    """Keep the metrics of this process and of its forks in files, to be added up.

    This is prometheus-client's multiprocess mode, switched on although metrics exist already: they
    start anew. The files are numbered by the place of a process, not by its pid: a process that
    replaces another goes on with its counters, and the number of files does not grow.
    """
    # The library has no public way to do this later than its import.
    found: Any = [each for each in REGISTRY._collector_to_names if _is_metric(each)]  # noqa: SLF001
    labelled = {each for each in found if each._is_parent()}  # noqa: SLF001
    for each in labelled:
        each.clear()
    os.environ[_DIRECTORY] = directory
    shared = values.MultiProcessValue(lambda: _Sharing.process)  # type: ignore[no-untyped-call]
    values.ValueClass = shared
    for each in set(found) - labelled:
        each._metric_init()  # noqa: SLF001
    _Sharing.is_on = True


def _is_metric(collector: Collector) -> bool:
    return isinstance(collector, MetricWrapperBase)


def number_process(process: int) -> None:
    """Name this process among those that share metrics; of one number only one may run."""
    _Sharing.process = process


class _Process(Collector):
    """The metrics of this process, as a part of another registry.

    Where it shares metrics they are those of all processes, beside what only this one has.
    """

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        shared = list(_of_all_processes()) if _Sharing.is_on else []
        names = {each.name for each in shared}
        return [*shared, *(each for each in REGISTRY.collect() if each.name not in names)]


def _of_all_processes() -> Iterable[Metric]:
    found: Iterable[Metric] = MultiProcessCollector(None).collect()  # type: ignore[no-untyped-call]
    return found


def exposition(*collectors: Collector, accept: str = "") -> tuple[bytes, str]:
    """Return the body and the content type of a scrape: this process and those collectors.

    In a supervisor they are those of all its processes; with ``PROMETHEUS_MULTIPROC_DIR`` set, of
    all the processes that share the directory.
    """
    registry = CollectorRegistry()
    if _DIRECTORY in os.environ and not _Sharing.is_on:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    else:
        registry.register(_Process())
    for each in collectors:
        registry.register(each)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def forget_process(pid: int) -> None:
    """Remove the gauges of a process that ended from the sums; its counters stay."""
    if _DIRECTORY in os.environ:
        mark_process_dead(pid)  # type: ignore[no-untyped-call]


def forget_child(pid: int, process: int) -> None:
    """Do the same of a supervisor's process, which has a number where metrics are shared."""
    forget_process(process if _Sharing.is_on else pid)
