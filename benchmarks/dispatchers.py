"""What the benchmark of notifications runs: a database, providers, and dispatchers.

Offers come from this process, providers are the fakes of the demo in another, and the workers
are ``manage.py runqueueworker`` with its processes.
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

from delayed_queue.db.wakeups import channel_of
from example_project.postgres import database_url

ROOT: Final = Path(__file__).resolve().parent.parent
STEP: Final = 0.05
QUEUES: Final = ("urgent", "normal", "bulk")
# As the intake does: a notification and its message in one transaction, here of a batch.
OFFER: Final[LiteralString] = """
WITH wanted AS (
    SELECT id, channel, recipient
    FROM unnest(%(ids)s::uuid[], %(channels)s::text[], %(recipients)s::text[])
        AS wanted (id, channel, recipient)
),
stored AS (
    INSERT INTO delayed_queue_notification (
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
DEAD: Final[LiteralString] = """
SELECT relname, n_dead_tup, pg_total_relation_size(relid)
FROM pg_stat_user_tables
WHERE relname IN ('delayed_queue', 'delayed_queue_notification')
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
        for channel in set(channels):  # as an offer does, to whoever sleeps
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
                queue, stored = dead["delayed_queue"], dead["delayed_queue_notification"]
                self.samples.append((time.monotonic() - began_at, queue[0], stored[0], queue[1]))


@contextmanager
def started(options: Namespace, server: str) -> Iterator[Bench]:
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
    program = "benchmarks.providers"
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
def dispatchers(bench: Bench) -> Iterator[None]:
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
            *(part for queue in QUEUES for part in ("--queue", f"notifications-{queue}-{channel}")),
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
def watched(bench: Bench) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=bench.watch, args=[stop])
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
