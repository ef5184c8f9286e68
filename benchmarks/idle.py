"""What a worker costs and how fast it answers on an idle queue: ``python -m benchmarks.idle``."""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from psycopg.conninfo import make_conninfo

from benchmarks.database import benchmark_database, embedded_server
from benchmarks.figures import (
    Line,
    Plot,
    Report,
    Table,
    distribution,
    parser_for,
    percentile,
    say,
)
from benchmarks.machine import describe
from benchmarks.running import Program, RunningWorker, working

RATE: Final = 20.0
SETTLE_SECONDS: Final = 5.0
WARM_UP: Final = 5
KINDS: Final[dict[str, dict[str, Any]]] = {"with NOTIFY": {}, "without NOTIFY": {"NOTIFY": False}}


@dataclass(slots=True)
class Idle:
    """An idle worker: its share of a core, its commands a minute by tag, its pick-up in ms."""

    name: str
    cpu: float = 0.0
    commands: dict[str, float] = field(default_factory=dict)
    delays_ms: list[float] = field(default_factory=list)


def main() -> None:
    """Measure a worker with its defaults, with NOTIFY and without."""
    options = _options()
    server = options.database_url or embedded_server()
    with benchmark_database(server) as connection:
        report = Report(describe(connection))
        conninfo = make_conninfo(server, dbname=connection.info.dbname)
        found = [_measured(options, conninfo, name) for name in KINDS]
    _tell(report, found, options)
    report.write(options)


def _options() -> Namespace:
    parser = parser_for("idle", __doc__)
    parser.add_argument("--seconds", type=float, help="of idling (60; quick 15)")
    parser.add_argument("--samples", type=int, help="offers to be picked up (300; quick 60)")
    options = parser.parse_args()
    options.seconds = options.seconds or (15.0 if options.quick else 60.0)
    options.samples = options.samples or (60 if options.quick else 300)
    return options


def _measured(options: Namespace, conninfo: str, name: str) -> Idle:
    idle = Idle(name)
    with working(Program(conninfo, KINDS[name])) as worker:
        pick_up(worker, WARM_UP)
        time.sleep(SETTLE_SECONDS)
        before = worker.cpu_seconds()
        time.sleep(options.seconds)
        idle.cpu = (worker.cpu_seconds() - before) / options.seconds
        idle.delays_ms = pick_up(worker, options.samples)
    idle.commands = _commands(options, name)
    say(f"{name}: CPU {idle.cpu:.2%}, p50 {percentile(idle.delays_ms, 50):.1f} ms, "
        f"{sum(idle.commands.values()):.0f} commands a minute")  # fmt: skip
    return idle


def pick_up(worker: RunningWorker, samples: int) -> list[float]:
    """Offer messages one by one, irregularly; return how long each took to its handler, in ms."""
    from delayed_queue import DelayedQueue

    queue, prefix = DelayedQueue("benchmark"), f"pick-up-{time.time_ns()}"
    for number in range(samples):
        queue.offer_or_update(f"{prefix}-{number}", time.time())
        time.sleep(random.uniform(0.5, 1.5) / RATE)  # noqa: S311
    delays: list[float] = []

    def is_complete() -> bool:
        delays.extend(each.delay_ms for each in worker.reader.read()[0])
        return len(delays) >= samples

    worker.wait_for(is_complete)
    return delays


def _commands(options: Namespace, name: str) -> dict[str, float]:
    """Return the commands per minute that the server completed for an idle worker, by tag.

    Counted in a run of its own, by a proxy, which costs time.
    """
    # Only now: it needs Django to be configured.
    from tests.support.proxies import proxied

    with proxied() as proxy:
        conninfo = make_conninfo(proxy.url)
        with working(Program(conninfo, KINDS[name])) as worker:
            pick_up(worker, WARM_UP)
            time.sleep(SETTLE_SECONDS)
            before = len(proxy.answers)
            time.sleep(options.seconds)
            tags = Counter(tag.split()[0] for tag in proxy.answers[before:])
    return {tag: count * 60 / options.seconds for tag, count in sorted(tags.items())}


def _tell(report: Report, found: list[Idle], options: Namespace) -> None:
    table = Table(
        f"A worker process and its supervisor on an idle queue, {options.seconds:g} s",
        ("", "CPU, of a core", "commands a minute", "pick-up p50, ms", "p99", "longest"),
    )
    for each in found:
        commands = ", ".join(f"{tag} {count:.0f}" for tag, count in each.commands.items())
        latencies = [percentile(each.delays_ms, 50), percentile(each.delays_ms, 99)]
        cells = [f"{each.cpu:.2%}", f"{sum(each.commands.values()):.0f} ({commands})"]
        cells += [f"{ms:.1f}" for ms in (*latencies, max(each.delays_ms))]
        table.rows.append((each.name, *cells))
    report.tables.append(table)
    report.data = {"idle": [asdict(each) for each in found]}
    lines = [Line(each.name, distribution(each.delays_ms)) for each in found]
    title = f"Pick-up of {options.samples} messages on an idle queue"
    report.plots.append(Plot(title, "% of the messages", "ms", lines, is_log_y=True))


if __name__ == "__main__":
    main()
