"""PgBouncer in transaction mode against a direct connection: ``python -m benchmarks.pgbouncer``."""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.database import OURS, benchmark_database, embedded_server, empty
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
from benchmarks.idle import WARM_UP, pick_up
from benchmarks.machine import describe
from benchmarks.running import Program, RunningWorker, working
from tests.support.pooler import PoolerMissing, pooler, version_of

DRAIN: Final = ("--batch-size", "500", "--concurrency", "1")
POLL_SECONDS: Final = "1"
PREPARED_SINCE: Final = (1, 21)
CHUNK: Final = 1_000


@dataclass(slots=True)
class Side:
    """One way to the server, and what was measured on it."""

    name: str
    conninfo: str
    settings: dict[str, Any] = field(default_factory=dict)
    is_pooled: bool = False
    offers: float = 0.0
    drain: float = 0.0
    handled_once: int = 0
    delays_ms: list[float] = field(default_factory=list)

    @property
    def program(self) -> Program:
        return Program(
            self.conninfo, self.settings, ("BENCHMARK_POOLED",) if self.is_pooled else ()
        )


def main() -> None:
    """Measure offers, a drain and pick-up on each way, and that each message is handled once."""
    options = _options()
    server = options.database_url or embedded_server()
    with benchmark_database(server) as connection:
        report = Report(describe(connection))
        conninfo = make_conninfo(server, dbname=connection.info.dbname)
        try:
            with pooler(conninfo) as pooled:
                report.machine["PgBouncer"] = ".".join(map(str, version_of()))
                sides = [_measured(options, connection, each) for each in _sides(conninfo, pooled)]
        except PoolerMissing as missing:
            raise SystemExit(str(missing)) from None
    _tell(report, sides, options)
    report.write(options)


def _options() -> Namespace:
    parser = parser_for("pgbouncer", __doc__)
    parser.add_argument("--messages", type=int, help="in the burst that is drained (20,000)")
    parser.add_argument("--offers", type=int, help="one by one (3,000)")
    parser.add_argument("--samples", type=int, help="offers to be picked up (200)")
    options = parser.parse_args()
    options.messages = options.messages or (2_000 if options.quick else 20_000)
    options.offers = options.offers or (300 if options.quick else 3_000)
    options.samples = options.samples or (20 if options.quick else 200)
    return options


def _sides(conninfo: str, pooled: str) -> Iterator[Side]:
    off = {"NOTIFY": False, "PREPARE": False}
    yield Side("direct, defaults", conninfo)
    yield Side("direct, NOTIFY and PREPARE off", conninfo, off)
    yield Side("PgBouncer, NOTIFY and PREPARE off", pooled, off, is_pooled=True)
    if version_of() >= PREPARED_SINCE:
        prepared = {"NOTIFY": False, "PREPARE": True}
        yield Side("PgBouncer, NOTIFY off, PREPARE on", pooled, prepared, is_pooled=True)
    else:
        say("PgBouncer is older than 1.21: it cannot prepare statements.")


def _measured(options: Namespace, connection: psycopg.Connection[Any], side: Side) -> Side:
    empty(connection, OURS)
    with _aliased(side):
        side.offers = _offers(options.offers)
        empty(connection, OURS)
        _offer_burst(options.messages)
        with working(side.program, *DRAIN) as worker:
            side.drain, side.handled_once = _drained(worker, options.messages)
        with working(side.program, "--poll-interval", POLL_SECONDS) as worker:
            pick_up(worker, WARM_UP)
            side.delays_ms = pick_up(worker, options.samples)
    say(f"{side.name}: {side.offers:,.0f} offers/s, drain {side.drain:,.0f}/s, {side.handled_once}")
    return side


@contextmanager
def _aliased(side: Side) -> Iterator[None]:
    """Lead this process's own offers the same way."""
    from django.conf import settings
    from django.db import connections

    from delayed_queue.conf import get_settings

    parts = conninfo_to_dict(side.conninfo)
    default = connections["default"]
    default.close()
    default.settings_dict |= {
        "HOST": parts.get("host", ""), "PORT": parts.get("port", ""),
        "USER": parts.get("user", ""), "PASSWORD": parts.get("password", ""),
        "DISABLE_SERVER_SIDE_CURSORS": side.is_pooled,
    }  # fmt: skip
    settings.DELAYED_QUEUE = side.settings
    get_settings.cache_clear()
    yield
    default.close()


def _offers(count: int) -> float:
    from delayed_queue import DelayedQueue

    queue = DelayedQueue("benchmark")
    queue.offer_or_update("first", 0.0)  # connects
    started_at = time.perf_counter()
    for number in range(count):
        queue.offer_or_update(f"single-{number}", 0.0)
    return count / (time.perf_counter() - started_at)


def _offer_burst(count: int) -> None:
    from delayed_queue import DelayedQueue, ScheduledMessage

    queue = DelayedQueue("benchmark")
    for first in range(0, count, CHUNK):
        keys = range(first, min(first + CHUNK, count))
        queue.offer_batch([ScheduledMessage(f"burst-{n}", time.time()) for n in keys])


def _drained(worker: RunningWorker, count: int) -> tuple[float, int]:
    """Return messages per second, and how many keys were handled exactly once."""
    from delayed_queue.models import Message

    times: list[float] = []
    deliveries: Counter[str] = Counter()

    def is_drained() -> bool:
        starts = worker.reader.read()[0]
        times.extend(each.started_at for each in starts)
        deliveries.update(each.key for each in starts)
        return len(deliveries) >= count and not Message.objects.exists()

    worker.wait_for(is_drained)
    rate = count / (max(times) - min(times))
    return rate, sum(number == 1 for number in deliveries.values())


def _tell(report: Report, sides: list[Side], options: Namespace) -> None:
    table = Table(
        "PgBouncer in transaction mode against a direct connection, one worker process",
        ("", "offers/s one by one", "against direct", f"drain of {options.messages:,}, messages/s",
         "against direct", "handled exactly once", "pick-up p50, ms", "p99"),
    )  # fmt: skip
    alike = sides[1]
    for each in sides:
        table.rows.append(
            (each.name, f"{each.offers:,.0f}", f"{each.offers / alike.offers:.2f}",
             f"{each.drain:,.0f}", f"{each.drain / alike.drain:.2f}", f"{each.handled_once:,}",
             f"{percentile(each.delays_ms, 50):.1f}", f"{percentile(each.delays_ms, 99):.1f}")
        )  # fmt: skip
    report.tables.append(table)
    report.data = {"sides": [{**asdict(each), "conninfo": ""} for each in sides]}
    lines = [Line(each.name, distribution(each.delays_ms)) for each in sides]
    title = f"Pick-up, the poll interval being {POLL_SECONDS} s where NOTIFY is off"
    report.plots.append(Plot(title, "% of the messages", "ms", lines, is_log_y=True))


if __name__ == "__main__":
    main()
