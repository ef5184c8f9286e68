"""The dispatcher against providers that take 100 ms: ``python -m benchmarks.notifications``.

Offers come from this process, providers are the fakes of the demo in another, and the workers
are ``manage.py runqueueworker`` with its processes. What the providers accepted is compared with
what was offered.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.database import embedded_server
from benchmarks.figures import Line, Plot, Report, Table, parser_for, say
from benchmarks.machine import describe
from delayed_queue.wakeups import channel_of
from example_project.postgres import database_url

ROOT: Final = Path(__file__).resolve().parent.parent
STEP: Final = 0.05
LANES: Final = ("urgent", "normal", "bulk")
# As the intake does: a notification and its message in one transaction, here of a batch.
OFFER: Final[LiteralString] = """
WITH wanted AS (
    SELECT id, channel, recipient
    FROM unnest(%(ids)s::uuid[], %(channels)s::text[], %(recipients)s::text[])
        AS wanted (id, channel, recipient)
),
stored AS (
    INSERT INTO notifications_notification (
        id, tenant, source, channel, priority, category, recipient, recipient_hash, template,
        subject, body, html, send_at, dedupe_key, callback_url, status, attempts, provider,
        provider_id, outcome, error_class
    )
    SELECT
        id, 'bench', 'rest', channel, %(priority)s, '', recipient, uuid_send(id), '', 'Hello',
        'Your parcel is on its way.', '', clock_timestamp(), '', '', 'ENQUEUED', 0, '', '', '', ''
    FROM wanted
    RETURNING id, channel
)
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT
    id::text, 'notifications-' || %(priority)s || '-' || channel || '|json', 'null'::bytea, now,
    now, now
FROM stored, (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS clock
"""
LATENCIES: Final[LiteralString] = """
SELECT
    percentile_cont(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (
        ORDER BY extract(epoch FROM started_at - created_at)
    ),
    percentile_cont(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (
        ORDER BY extract(epoch FROM ended_at - created_at)
    )
FROM notifications_notification
WHERE started_at IS NOT NULL
    AND priority = %(priority)s
"""
# A tenth of a campaign is worth nothing after half a minute.
SHORT_LIVED: Final[LiteralString] = """
UPDATE notifications_notification
SET expires_at = clock_timestamp() + interval '30 seconds'
WHERE get_byte(uuid_send(id), 15) % 10 = 0
"""
EXPIRED: Final[LiteralString] = """
SELECT
    count(*) FILTER (WHERE status = 'EXPIRED'),
    count(*) FILTER (WHERE status = 'SUCCESSFULLY_PROCESSED'),
    count(*) FILTER (WHERE status = 'SUCCESSFULLY_PROCESSED' AND started_at > expires_at)
FROM notifications_notification
WHERE expires_at IS NOT NULL
"""
STATUSES: Final[LiteralString] = """
SELECT status, count(*)
FROM notifications_notification
GROUP BY status
"""
SIZE: Final[LiteralString] = """
SELECT pg_total_relation_size('notifications_notification')
    + pg_total_relation_size('notifications_delivery')
"""
DEAD: Final[LiteralString] = """
SELECT relname, n_dead_tup, pg_total_relation_size(relid)
FROM pg_stat_user_tables
WHERE relname IN ('delayed_queue', 'notifications_notification')
"""


@dataclass(slots=True)
class Bench:
    """A database with the tables of the service, its providers and its dispatchers."""

    options: Namespace
    conninfo: str
    connection: psycopg.Connection[Any]
    ports: dict[str, int]
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)
    offered: int = 0

    def offer(self, count: int, priority: str = "normal") -> None:
        emails = self.options.email_share
        ids = [uuid.uuid4() for _ in range(count)]
        channels = ["email" if each.int % 100 < emails else "sms" for each in ids]
        recipients = [
            f"{each.hex}@example.org" if channel == "email" else f"+407{each.int % 10**8:08}"
            for each, channel in zip(ids, channels, strict=True)
        ]
        params = {"ids": ids, "channels": channels, "recipients": recipients, "priority": priority}
        self.connection.execute(OFFER, params)
        for channel in set(channels):  # as an offer does, to who sleeps
            kind = f"notifications-{priority}-{channel}|json"
            self.connection.execute("SELECT pg_notify(%s, '')", [channel_of(kind)])
        self.offered += count

    def fill(self, count: int, priority: str) -> None:
        for _ in range(0, count, 10_000):
            self.offer(min(10_000, count), priority)
        self.connection.execute("VACUUM ANALYZE")

    def at_rate(self, rate: float, seconds: float, priority: str = "normal") -> None:
        """Offer at that rate, never catching up by more than a second's worth."""
        began_at, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began_at) < seconds:
            wanted = int(rate * passed) - sent
            if wanted > 0:
                self.offer(min(wanted, int(rate) + 1), priority)
                sent += wanted
            time.sleep(STEP)

    def ended(self) -> int:
        accepted = self.accepted()
        total: int = accepted["total"]
        return total

    def accepted(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.ports['control']}/accepted"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def wait_for(self, count: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.ended() < count:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

    def rows(self, statement: LiteralString, **params: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement, params).fetchall()

    def watch(self, stop: threading.Event) -> None:
        """Note every other second how many dead rows there are."""
        began_at = time.monotonic()
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            while not stop.wait(2.0):
                dead = {row[0]: row[1:] for row in connection.execute(DEAD)}
                queue, stored = dead["delayed_queue"], dead["notifications_notification"]
                self.samples.append((time.monotonic() - began_at, queue[0], stored[0], queue[1]))


def main() -> None:
    """Measure the phases that were asked for, on one database each."""
    options = _options()
    server = options.database_url or embedded_server()
    tables, plots, machine = [], [], {}
    for phase in options.phases:
        with _bench(options, server) as bench:
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
    with _dispatchers(bench), _watched(bench):
        bench.at_rate(50, 3)  # the processes have started
        bench.wait_for(bench.offered, 60)
        bench.connection.execute("TRUNCATE notifications_notification, notifications_delivery")
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
    with _dispatchers(bench), _watched(bench):
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
    with _dispatchers(bench), _watched(bench):
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
        ("offer to in hand: p50, p99, longest", shown[0]),
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


# What runs


@contextmanager
def _bench(options: Namespace, server: str) -> Iterator[Bench]:
    name = f"notifications_benchmark_{os.getpid()}"
    identifier = sql.Identifier(name)
    with psycopg.connect(server, autocommit=True) as maintenance:
        maintenance.execute(sql.SQL("CREATE DATABASE {}").format(identifier))
        conninfo = make_conninfo(server, dbname=name)
        try:
            _manage(conninfo, "migrate", "--verbosity", "0").wait(120)
            with _providers(options) as ports, psycopg.connect(conninfo, autocommit=True) as own:
                yield Bench(options, conninfo, own, ports)
        finally:
            maintenance.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))


@contextmanager
def _providers(options: Namespace) -> Iterator[dict[str, int]]:
    program = "example_project.demo.notifications.fakes"
    command = [sys.executable, "-m", program, f"--latency={options.latency}"]
    with subprocess.Popen(  # noqa: S603 - our own
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None  # noqa: S101
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.communicate(timeout=30)


@contextmanager
def _dispatchers(bench: Bench) -> Iterator[None]:
    options = bench.options
    providers = {
        "email": [
            {
                "kind": "email", "name": "mail", "sender": "shop@example.org",
                "host": "127.0.0.1", "port": bench.ports["smtp"], "threads": 60,
            }
        ],
        "sms": [
            {
                "kind": "http", "name": "texts", "idempotency_header": "Idempotency-Key",
                "url": f"http://127.0.0.1:{bench.ports['sms']}/messages",
            }
        ],
    }  # fmt: skip
    # Processes by channel, as the deployment page has it: a backlog of one is not in the way of
    # the other.
    processes = [
        _manage(
            bench.conninfo, "runqueueworker", "--processes", str(count),
            *(part for lane in LANES for part in ("--queue", f"notifications-{lane}-{channel}")),
            "--async-concurrency", str(options.async_concurrency), "--batch-size", "100",
            NOTIFICATION_PROVIDERS=json.dumps(providers),
        )
        for channel, count in (("email", 1), ("sms", max(options.processes - 1, 1)))
    ]  # fmt: skip
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)


def _manage(conninfo: str, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    parts = conninfo_to_dict(conninfo)
    url = database_url(
        user=str(parts.get("user", "")), password=str(parts.get("password", "")),
        host=str(parts.get("host", "")), port=int(parts.get("port") or 5432),
        name=str(parts["dbname"]),
    )  # fmt: skip
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "example_project.settings", "DATABASE_URL": url,
        "DEBUG": "0", "SECRET_KEY": "of the benchmark", "LOG_LEVEL": "ERROR", **variables,
    }  # fmt: skip
    return subprocess.Popen(  # noqa: S603 - our own
        [sys.executable, "manage.py", *arguments], cwd=ROOT, env=environment
    )


@contextmanager
def _watched(bench: Bench) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=bench.watch, args=[stop])
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
