"""Prometheus metrics: an instrument for workers, a collector for queues, their exposition."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import DEFAULT_DB_ALIAS, Error

from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import drop_if_lost
from delayed_queue.exceptions import DelayedQueueError, needing
from delayed_queue.facade import DelayedQueue
from delayed_queue.instruments import Instrument, ending
from delayed_queue.messages import Envelope
from delayed_queue.observe import signals
from delayed_queue.observe.lateness import Reason, is_late, why_late
from delayed_queue.observe.overview import QueueDepth, measure, name_of
from delayed_queue.observe.snapshots import Snapshot, oldest_snapshot
from delayed_queue.observe.stored_batches import Unfinished, unfinished
from delayed_queue.observe.workers import Running, Worker
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
# At most this many groups of a queue have a metric of their own.
TOP_GROUPS: Final = 10
# By queue and kind.
Held = dict[tuple[str, str], list[HeldGroup]]
_ENDS: Final = {
    "leased": "Messages that workers leased.",
    "acknowledged": "Messages that were handled and deleted.",
    "expired": "Messages that expired before a handler started them.",
    "failed": "Attempts that failed and will be retried.",
    "dead": "Messages that became dead letters in a worker.",
    "refused": "Attempts whose result the database refused to write.",
}


class PrometheusInstrument(Instrument):
    """Measures the handlers of this process and counts the outcomes of its messages.

    Instruments of one registry share its metrics, so nothing is counted twice.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._metrics = _metrics_of(registry)

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
            "Delay from the due time to the start of the handler.", ["queue", "handler"],
            buckets=_LATENESS, registry=registry,
        )  # fmt: skip
        self.in_progress = Gauge(
            "delayed_queue_handlers_in_progress", "Handlers that are running.",
            ["queue", "handler"], multiprocess_mode="livesum", registry=registry,
        )  # fmt: skip
        # Signals hold their receivers weakly.
        self._receivers = []
        for name, text in _ENDS.items():
            counter = Counter(f"delayed_queue_messages_{name}", text, ["queue"], registry=registry)
            self._receivers.append(partial(_count, counter))
            getattr(signals, name).connect(self._receivers[-1])


def _count(
    counter: Counter,
    *,
    envelope: Envelope | None = None,
    envelopes: Sequence[Envelope] = (),
    **kwargs: Any,
) -> None:
    counted = envelopes if envelope is None else [envelope]
    for queue, count in Tally(each.queue for each in counted).items():
        counter.labels(queue).inc(count)


_known: Final[WeakKeyDictionary[CollectorRegistry, _Metrics]] = WeakKeyDictionary()
_lock: Final = threading.Lock()


def _metrics_of(registry: CollectorRegistry) -> _Metrics:
    """Return the registry's metrics: a registry refuses to have the same names twice."""
    with _lock:
        if registry not in _known:
            _known[registry] = _Metrics(registry)
        return _known[registry]


class QueueCollector(Collector):
    """Counts queues when it is scraped, in few statements and up to a cap.

    ``queues`` names the queues; the default is all with messages, dead letters or a handler, at
    most a hundred. If the database cannot be reached, ``delayed_queue_up`` is 0 and the other
    metrics of the scrape remain.
    """

    def __init__(
        self, queues: Iterable[str] = (), *, cap: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        self._queues = tuple(queues)
        self._cap = cap
        self._using = using

    def describe(self) -> Iterable[Metric]:
        """Return nothing: otherwise a registration would query the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        try:
            # Outside a request Django does not replace a lost connection.
            drop_if_lost(self._using)
            found = list(self._queried())
        except (Error, DelayedQueueError):
            found = []
        yield _gauge("up", "1 if the database answered.", ["database"],
                     [([self._using], bool(found))])  # fmt: skip
        yield from found

    def _queried(self) -> Iterator[Metric]:
        using = self._using
        depths = measure(self._queues, cap=self._cap, using=using)[0]
        live = Worker.objects.live(using=using)
        yield from _gauges_of_queues(depths)
        late, snapshot = list(filter(is_late, depths)), oldest_snapshot(using)
        yield _gauge_of_reasons(why_late(late, live, snapshot, using=using))
        yield _gauge_of_handlers(live.running)
        yield from _gauges_of_snapshot(snapshot)
        yield from _gauges_of_groups(_held(depths, using), using)
        yield from _gauges_of_batches(list(filter(self._is_wanted, unfinished(using=using))))

    def _is_wanted(self, found: Unfinished) -> bool:
        names = {found.kind, name_of(found.kind).queue}
        return not self._queues or not names.isdisjoint(self._queues)


def _gauge(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[list[str], float]]
) -> Metric:
    family = GaugeMetricFamily(f"delayed_queue_{name}", text, labels=labels)
    for values_of_labels, value in samples:
        family.add_metric(values_of_labels, value)
    return family


def _gauges_of_queues(found: list[QueueDepth]) -> Iterator[Metric]:
    queues = [([each.name.queue, each.kind], each) for each in found]
    labels = ["queue", "kind"]
    yield _gauge("messages", "Messages in the queue.", [*labels, "state"], [
        ([*queue, state], each.counts[state].value)
        for queue, each in queues for state in ("due", "scheduled", "leased")
    ])  # fmt: skip
    yield _gauge("dead_letters", "Dead letters of the queue.", labels, [
        (queue, each.dead.value) for queue, each in queues
    ])  # fmt: skip
    yield _gauge("oldest_due_age_seconds", "Lateness of the earliest due message.", labels, [
        (queue, each.oldest_due_age.total_seconds() if each.oldest_due_age else 0)
        for queue, each in queues
    ])  # fmt: skip
    yield _gauge("counts_cut", "1 if a count of the queue stopped at its cap.", labels, [
        (queue, any(count.is_cut for count in each.counts.values())) for queue, each in queues
    ])  # fmt: skip


def _gauge_of_reasons(late: dict[str, list[Reason]]) -> Metric:
    reasons = {(kind, each.name): 1 for kind, found in late.items() for each in found}
    samples = [([name_of(kind).queue, kind, name], one) for (kind, name), one in reasons.items()]
    labels, text = ["queue", "kind", "reason"], "1 for each reason why the queue is late."
    return _gauge("late", text, labels, samples)


def _gauge_of_handlers(running: list[Running]) -> Metric:
    """Return the age of the longest-running handler of each queue, by the workers' heartbeats."""
    longest: dict[str, float] = {}
    for each in running:
        longest[each.queue] = max(longest.get(each.queue, 0.0), each.age.total_seconds())
    samples = [([queue], seconds) for queue, seconds in longest.items()]
    text = "Run time of the longest-running handler, for the queue of each worker's longest."
    return _gauge("handler_running_seconds", text, ["queue"], samples)


def _held(depths: Sequence[QueueDepth], using: str) -> Held:
    """Return the held groups of queues with limits, the longest held first."""
    names = {each.kind: each.name.queue for each in depths}
    limited = Limit.objects.using(using).filter(kind__in=names).values_list("kind", flat=True)
    found: Held = {}
    for kind in sorted(set(limited)):
        groups = DelayedQueue(names[kind], kind=kind, using=using).groups.held()
        found[names[kind], kind] = [each for each in groups if each.reason]
    return found


def _gauges_of_groups(held: Held, using: str) -> Iterator[Metric]:
    labels = ["queue", "kind"]
    yield _gauge(
        "groups_held", "Held groups among the first hundred that have messages.",
        [*labels, "reason"],
        [([*queue, reason], count) for queue, groups in held.items()
         for reason, count in Tally(each.reason for each in groups).items()],
    )  # fmt: skip
    now = database_now(using).timestamp() if held else 0.0
    yield _gauge(
        "group_held_seconds",
        "Lateness of the earliest message in held groups, the longest held first.",
        [*labels, "group", "reason"],
        [([*queue, each.name, each.reason], _lateness(each, now))
         for queue, groups in held.items() for each in groups[:TOP_GROUPS]],
    )  # fmt: skip


def _gauges_of_batches(found: list[Unfinished]) -> Iterator[Metric]:
    rows = [
        ([name_of(each.kind).queue, each.kind, "open" if each.is_open else "closed"], each)
        for each in found
    ]
    labels = ["queue", "kind", "state"]
    yield _gauge("batches", "Unfinished batches, among the oldest 10,000.", labels, [
        (of_batch, each.number) for of_batch, each in rows
    ])  # fmt: skip
    yield _gauge("oldest_batch_age_seconds", "Age of the oldest unfinished batch.", labels, [
        (of_batch, each.seconds) for of_batch, each in rows
    ])  # fmt: skip


def _lateness(group: HeldGroup, now: float) -> float:
    return 0.0 if group.due_since is None else max(now - group.due_since / 1000, 0.0)


def _gauges_of_snapshot(snapshot: Snapshot | None) -> Iterator[Metric]:
    held, labels = [] if snapshot is None else [snapshot], ["holder"]
    yield _gauge(
        "snapshot_age_seconds",
        "Age of the oldest snapshot that keeps deleted messages from being vacuumed.",
        labels, [([each.holder], each.age.total_seconds() if each.age else 0) for each in held],
    )  # fmt: skip
    yield _gauge(
        "snapshot_transactions", "Transactions started since that snapshot.",
        labels, [([each.holder], each.transactions) for each in held],
    )  # fmt: skip
    yield _gauge(
        "snapshot_dead_rows", "Dead row versions of messages that are not vacuumed yet.",
        labels, [([each.holder], each.dead_rows) for each in held],
    )  # fmt: skip
    yield _gauge(
        "snapshot_scan_seconds",
        "Time of a claim from the start of the queue, for the slowest queue.",
        [*labels, "queue"],
        [([each.holder, each.scanned], each.scan_seconds) for each in held if each.scanned],
    )  # fmt: skip


_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"


class _Sharing:
    """The metrics that a supervisor and its processes share; ``process`` is 0 in the supervisor."""

    is_on = False
    process = 0


def share_metrics(directory: str) -> None:
    """Keep the metrics of this process and its forks in files, which are added up.

    Switches on prometheus-client's multiprocess mode for metrics that exist already; they restart
    at zero. Files are numbered by the process's number, not by its pid: a replacement continues the
    counters of its predecessor, and the number of files does not grow.
    """
    # The library has no public way to do this after its import.
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
    """Set the number of this process among those that share metrics; numbers are unique."""
    _Sharing.process = process


class _Process(Collector):
    """The metrics of this process as part of another registry.

    Shared metrics are those of all processes; the others are those of this process.
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
    """Return the body and the content type of a scrape of this process and those collectors.

    A supervisor, or a process with ``PROMETHEUS_MULTIPROC_DIR``, includes all processes that share
    its metrics.
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
    """Remove the gauges of an ended process from the sums; its counters stay."""
    if _DIRECTORY in os.environ:
        mark_process_dead(pid)  # type: ignore[no-untyped-call]


def forget_child(pid: int, process: int) -> None:
    """Do the same for a process of a supervisor, numbered if metrics are shared."""
    forget_process(process if _Sharing.is_on else pid)
