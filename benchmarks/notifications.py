"""The dispatcher against providers that take 100 ms: ``python -m benchmarks.notifications``.

Offers come from this process, providers are the fakes of the demo in another, and the workers
are ``manage.py runqueueworker`` with its processes. What the providers accepted is compared with
what was offered.
"""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Final, LiteralString

from benchmarks.database import embedded_server
from benchmarks.dispatchers import Bench, dispatchers, started, watched
from benchmarks.figures import Line, Plot, Report, Table, parser_for, say
from benchmarks.machine import describe

LATENCIES: Final[LiteralString] = """
SELECT
    percentile_cont(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (
        ORDER BY extract(epoch FROM started_at - created_at)
    ),
    percentile_cont(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (
        ORDER BY extract(epoch FROM ended_at - created_at)
    )
FROM delayed_queue_notification
WHERE started_at IS NOT NULL
    AND priority = %(priority)s
"""
# A tenth of a campaign is worth nothing after half a minute.
SHORT_LIVED: Final[LiteralString] = """
UPDATE delayed_queue_notification
SET expires_at = clock_timestamp() + interval '30 seconds'
WHERE get_byte(uuid_send(id), 15) % 10 = 0
"""
EXPIRED: Final[LiteralString] = """
SELECT
    count(*) FILTER (WHERE status = 'EXPIRED'),
    count(*) FILTER (WHERE status = 'SUCCESSFULLY_PROCESSED'),
    count(*) FILTER (WHERE status = 'SUCCESSFULLY_PROCESSED' AND started_at > expires_at)
FROM delayed_queue_notification
WHERE expires_at IS NOT NULL
"""
STATUSES: Final[LiteralString] = """
SELECT status, count(*)
FROM delayed_queue_notification
GROUP BY status
"""
SIZE: Final[LiteralString] = """
SELECT pg_total_relation_size('delayed_queue_notification')
    + pg_total_relation_size('delayed_queue_notification_delivery')
"""


def main() -> None:
    """Measure the phases that were asked for, on one database each."""
    options = _options()
    server = options.database_url or embedded_server()
    tables, plots = [], []
    machine: dict[str, str] = {}
    for phase in options.phases:
        with started(options, server) as bench:
            machine = machine or describe(bench.connection)
            table, lines = PHASES[phase](bench)
            tables.append(table)
            plots.append(Plot(f"dead rows: {phase}", "seconds", "rows", lines))
    Report(machine, tables, plots).write(options)


def _options() -> Namespace:
    parser = parser_for("notifications", __doc__)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=["sustained", "campaign"])
    parser.add_argument("--seconds", type=float, help="of sustained load (120; quick 15)")
    parser.add_argument("--rate", type=float, default=1200.0, help="notifications a second")
    parser.add_argument("--drain", type=int, help="the backlog (1,000,000; quick 20,000)")
    parser.add_argument("--processes", type=int, default=2, help="one of them sends the email")
    parser.add_argument("--latency", type=float, default=0.1, help="of the providers, in seconds")
    parser.add_argument("--email-share", type=int, default=20, metavar="PERCENT")
    parser.add_argument("--async-concurrency", type=int, default=200)
    options = parser.parse_args()
    options.seconds = options.seconds or (15.0 if options.quick else 120.0)
    options.drain = options.drain or (20_000 if options.quick else 1_000_000)
    return options


# Phases


def _sustained(bench: Bench) -> tuple[Table, list[Line]]:
    options = bench.options
    with dispatchers(bench), watched(bench):
        bench.at_rate(50, 3)  # the processes have started
        bench.wait_for(bench.offered, 60)
        bench.connection.execute(
            "TRUNCATE delayed_queue_notification, delayed_queue_notification_delivery"
        )
        before = bench.offered
        began_at = time.monotonic()
        bench.at_rate(options.rate, options.seconds)
        offering = time.monotonic() - began_at
        behind = bench.offered - bench.ended()
        is_complete = bench.wait_for(bench.offered, 60)
        took = time.monotonic() - began_at
    table = _table(f"{options.rate:,.0f}/s for {options.seconds:.0f} s")
    count = bench.offered - before
    table.rows += [
        ("offered", f"{count:,} ({count / offering:,.0f}/s)"),
        ("sent by the end of the offers", f"{(count - behind) / offering:,.0f}/s"),
        ("all sent after", f"{took:.1f} s{'' if is_complete else ' (not all)'}"),
        *_latencies(bench, "normal"),
        *_witnesses(bench),
    ]
    return table, _dead(bench)


def _drained(bench: Bench) -> tuple[Table, list[Line]]:
    options = bench.options
    say(f"storing {options.drain:,}")
    bench.fill(options.drain, "bulk")
    with dispatchers(bench), watched(bench):
        bench.wait_for(1, 60)  # the processes have started
        began_at = time.monotonic()
        is_complete = bench.wait_for(bench.offered, 3600)
        took = time.monotonic() - began_at
    table = _table(f"drain of {options.drain:,}")
    table.rows += [
        ("drained in", f"{took / 60:.1f} min{'' if is_complete else ' (not all)'}"),
        ("per second", f"{options.drain / took:,.0f}"),
        *_witnesses(bench),
    ]
    return table, _dead(bench)


def _campaign(bench: Bench) -> tuple[Table, list[Line]]:
    """One-time codes, ten a second, while a campaign is being sent of which a tenth expires."""
    options = bench.options
    say(f"storing {options.drain:,}")
    bench.fill(options.drain, "bulk")
    bench.connection.execute(SHORT_LIVED)
    bench.connection.execute("VACUUM ANALYZE")
    with dispatchers(bench), watched(bench):
        bench.wait_for(100, 60)
        before = bench.ended()
        bench.at_rate(10, min(options.seconds, 60.0), "urgent")
        rate = (bench.ended() - before) / min(options.seconds, 60.0)
        time.sleep(2)
    table = _table(f"codes during a campaign of {options.drain:,}")
    [(expired, sent, late)] = bench.rows(EXPIRED)
    table.rows += [
        ("sent meanwhile", f"{rate:,.0f}/s"),
        *_latencies(bench, "urgent"),
        ("short-lived: expired, sent, begun too late", f"{expired:,}, {sent:,}, {late}"),
    ]
    return table, _dead(bench)


PHASES: Final = {"sustained": _sustained, "drain": _drained, "campaign": _campaign}


def _table(title: str) -> Table:
    return Table(f"Notifications: {title}", ("", "measured"))


def _latencies(bench: Bench, priority: str) -> list[tuple[str, str]]:
    [(started, ended)] = bench.rows(LATENCIES, priority=priority)
    shown = [", ".join(f"{1000 * each:,.0f} ms" for each in found) for found in (started, ended)]
    return [
        ("offer to begun: p50, p99, longest", shown[0]),
        ("offer to sent: p50, p99, longest", shown[1]),
    ]


def _witnesses(bench: Bench) -> list[tuple[str, str]]:
    found = bench.accepted()
    lost = bench.offered - found["total"]
    [(size,)] = bench.rows(SIZE)
    statuses = ", ".join(f"{name} {count:,}" for name, count in bench.rows(STATUSES))
    return [
        ("providers: lost, twice", f"{lost}, {found['twice']}"),
        ("statuses", statuses),
        ("bytes for each, with indexes", f"{size / max(bench.offered, 1):,.0f}"),
        ("dead rows at most: queue, notifications", _most_dead(bench)),
    ]


def _most_dead(bench: Bench) -> str:
    if not bench.samples:
        return "-"
    return f"{max(s[1] for s in bench.samples):,}, {max(s[2] for s in bench.samples):,}"


def _dead(bench: Bench) -> list[Line]:
    return [
        Line("queue", [(at, float(queue)) for at, queue, _, _ in bench.samples]),
        Line("notifications", [(at, float(stored)) for at, _, stored, _ in bench.samples]),
    ]


if __name__ == "__main__":
    main()
