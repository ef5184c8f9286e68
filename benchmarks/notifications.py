"""The dispatcher with providers that take 100 ms: ``python -m benchmarks.notifications``.

Offers come from this process, providers are the demo's fakes in another, and workers are
``manage.py runqueueworker``. The requests that the providers accepted are compared with the offers.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
import uuid
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg

from benchmarks.shared.database import (
    Connection,
    embedded_server,
    example_environment,
    new_database,
)
from benchmarks.shared.machine import describe
from benchmarks.shared.processes import running
from benchmarks.shared.reporting import Options, Report, Table, say
from delayed_queue.codecs import channel_of

STEP: Final = 0.05
QUEUES: Final = ("urgent", "normal", "bulk")
CODES_PER_SECOND: Final = 10
# A notification and its message in one transaction, as the intake does; here many.
OFFER: Final[LiteralString] = """
WITH wanted AS (
    SELECT id, channel, recipient
    FROM unnest(%(ids)s::uuid[], %(channels)s::text[], %(recipients)s::text[])
        AS wanted (id, channel, recipient)
),
stored AS (
    INSERT INTO delayed_queue_notification (
        id, tenant, channel, priority, category, recipient, recipient_hash, template,
        subject, body, html, send_at, dedupe_key, callback_url, status, attempts, provider,
        provider_id, outcome, error_class
    )
    SELECT
        id, 'bench', channel, %(priority)s,
        CASE channel WHEN 'email' THEN 'offers' ELSE '' END, recipient, uuid_send(id), '', 'Hello',
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
FROM delayed_queue_notification
WHERE started_at IS NOT NULL
    AND priority = %(priority)s
"""


@dataclass(slots=True)
class Bench:
    """A database of the example project, its providers, and what was offered."""

    options: Namespace
    conninfo: str
    connection: Connection
    ports: dict[str, int]
    offered: int = 0

    def offer(self, count: int, priority: str = "normal") -> None:
        ids = [uuid.uuid4() for _ in range(count)]
        share = self.options.email_share
        channels = ["email" if each.int % 100 < share else "sms" for each in ids]
        recipients = [
            f"{each.hex}@example.org" if channel == "email" else f"+407{each.int % 10**8:08}"
            for each, channel in zip(ids, channels, strict=True)
        ]
        params = {"ids": ids, "channels": channels, "recipients": recipients, "priority": priority}
        self.connection.execute(OFFER, params)
        for channel in set(channels):
            kind = f"notifications-{priority}-{channel}|json"
            self.connection.execute("SELECT pg_notify(%s, '')", [channel_of(kind)])
        self.offered += count

    def fill(self, count: int, priority: str) -> None:
        say(f"storing {count:,}")
        for _ in range(0, count, 10_000):
            self.offer(min(10_000, count), priority)
        self.connection.execute("VACUUM ANALYZE")

    def offer_at(self, rate: float, seconds: float, priority: str = "normal") -> None:
        """Offer at a rate; a pause is made up for by at most a second's worth at once."""
        began_at, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began_at) < seconds:
            if (wanted := min(int(rate * passed) - sent, int(rate) + 1)) > 0:
                self.offer(wanted, priority)
                sent += wanted
            time.sleep(STEP)

    def accepted(self) -> dict[str, int]:
        url = f"http://127.0.0.1:{self.ports['control']}/accepted"
        with urllib.request.urlopen(url, timeout=10) as response:
            found: dict[str, int] = json.load(response)
        return found

    def wait_for(self, count: int, seconds: float) -> str:
        """Return nothing when the providers accepted this many, or a remark after a time."""
        deadline = time.monotonic() + seconds
        while self.accepted()["total"] < count:
            if time.monotonic() > deadline:
                return " (not all)"
            time.sleep(0.2)
        return ""

    def latencies(self, priority: str) -> list[tuple[str, str]]:
        found = self.connection.execute(LATENCIES, {"priority": priority}).fetchone() or ()
        names = ("offer to begun: p50, p99, longest", "offer to sent: p50, p99, longest")
        shown = [", ".join(f"{1000 * each:,.0f} ms" for each in times) for times in found]
        return list(zip(names, shown, strict=True))

    def witnesses(self) -> list[tuple[str, str]]:
        found = self.accepted()
        return [("providers: lost, twice", f"{self.offered - found['total']}, {found['twice']}")]


def main() -> None:
    """Measure the phases, each on a database of its own."""
    options = _options()
    report = Report({})
    for phase in options.phases:
        with _started(options) as bench:
            report.machine = report.machine or describe(bench.connection)
            table = Table(f"Notifications: {phase}", ("", "measured"))
            for row in PHASES[phase](bench):
                table.add(*row)
            report.tables.append(table)
    report.write(options)


def _options() -> Namespace:
    options = Options(".notifications", __doc__)
    options.size("seconds", 120.0, 15.0, "seconds of sustained load")
    options.size("rate", 1200.0, 200.0, "notifications a second")
    options.size("drain", 1_000_000, 5_000, "notifications of a backlog")
    options.size("processes", 2, 2, "worker processes; one sends the email")
    options.size("latency", 0.1, 0.1, "seconds that a provider takes")
    options.size("email-share", 20, 20, "percent of email")
    options.size("async-concurrency", 200, 200, "calls of a process at a time")
    default = ["sustained", "campaign"]
    options.parser.add_argument("--phases", nargs="+", choices=PHASES, default=default)
    return options.parse()


@contextmanager
def _started(options: Namespace) -> Iterator[Bench]:
    """Create the database and start the providers."""
    latency = str(options.latency)
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        server = options.database_url or embedded_server()
        conninfo = stack.enter_context(new_database(server))
        migrate = ("manage.py", "migrate", "--verbosity", "0")
        with running(*migrate, environment=example_environment(conninfo)) as process:
            process.wait(120)
        providers: Any = stack.enter_context(
            running("-m", "benchmarks.providers", latency, **pipes)
        )
        ports = json.loads(providers.stdout.readline())
        connection = stack.enter_context(psycopg.connect(conninfo, autocommit=True))
        yield Bench(options, conninfo, connection, ports)


@contextmanager
def _dispatching(bench: Bench) -> Iterator[None]:
    """Run processes by channel, so that a backlog of one does not delay the other."""
    email = {
        "kind": "email", "name": "mail", "sender": "shop@example.org", "host": "127.0.0.1",
        "port": bench.ports["smtp"], "threads": 60,
    }  # fmt: skip
    sms = {
        "kind": "http", "name": "texts", "idempotency_header": "Idempotency-Key",
        "url": f"http://127.0.0.1:{bench.ports['sms']}/messages",
    }  # fmt: skip
    providers = json.dumps({"email": [email], "sms": [sms]})
    # With the headers of an unsubscribe link in each mail.
    environment = example_environment(
        bench.conninfo,
        NOTIFICATION_PROVIDERS=providers,
        NOTIFICATIONS_URL="https://notify.example.org/v1",
    )
    counts = {"email": 1, "sms": max(bench.options.processes - 1, 1)}
    with ExitStack() as stack:
        for channel, count in counts.items():
            names = [f"notifications-{queue}-{channel}" for queue in QUEUES]
            queues = [part for name in names for part in ("--queue", name)]
            concurrency = str(bench.options.async_concurrency)
            more = ("--async-concurrency", concurrency, "--batch-size", "100")
            command = ("manage.py", "runqueueworker", "--processes", str(count), *queues, *more)
            stack.enter_context(running(*command, environment=environment))
        yield


Rows = Iterator[tuple[str, str]]


def _sustained(bench: Bench) -> Rows:
    options = bench.options
    with _dispatching(bench):
        bench.offer_at(50, 3)  # until the processes have started
        bench.wait_for(bench.offered, 60)
        tables = "delayed_queue_notification, delayed_queue_notification_delivery"
        bench.connection.execute(f"TRUNCATE {tables}".encode())
        before, began_at = bench.offered, time.monotonic()
        bench.offer_at(options.rate, options.seconds)
        seconds, count = time.monotonic() - began_at, bench.offered - before
        behind = bench.offered - bench.accepted()["total"]
        remark = bench.wait_for(bench.offered, 60)
        took = time.monotonic() - began_at
    yield "offered", f"{count:,} ({count / seconds:,.0f}/s)"
    yield "sent by the end of the offers", f"{(count - behind) / seconds:,.0f}/s"
    yield "all sent after", f"{took:.1f} s{remark}"
    yield from bench.latencies("normal")
    yield from bench.witnesses()


def _campaign(bench: Bench) -> Rows:
    """One-time codes beside a campaign."""
    bench.fill(bench.options.drain, "bulk")
    seconds = min(bench.options.seconds, 60.0)
    with _dispatching(bench):
        bench.wait_for(100, 60)
        before = bench.accepted()["total"]
        bench.offer_at(CODES_PER_SECOND, seconds, "urgent")
        rate = (bench.accepted()["total"] - before) / seconds
        time.sleep(2)
    yield "sent meanwhile", f"{rate:,.0f}/s"
    yield from bench.latencies("urgent")


PHASES: Final = {"sustained": _sustained, "campaign": _campaign}

if __name__ == "__main__":
    main()
