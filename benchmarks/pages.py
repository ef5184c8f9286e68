"""What each page of the admin takes, by the clock: ``python -m benchmarks.pages``."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import django
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from benchmarks.database import embedded_server
from benchmarks.figures import Report, Table, parser_for, say
from benchmarks.machine import describe

if TYPE_CHECKING:
    from django.test import Client

LIMIT: Final = 0.2
ROUNDS: Final = 5
BULK: Final = "bulk|json"
# Of each table as many rows as are asked for, beside those of the gallery: messages half of them
# due, half scheduled; letters in 5,000 groups, of an hour; a result in a hundred failed.
FILLS: Final = {
    "delayed_queue": """
        INSERT INTO delayed_queue
            ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
        SELECT 'key-' || n, CASE WHEN n %% 4 = 3 THEN 'later|json' ELSE 'bulk|json' END,
            %(payload)s, %(now)s + CASE WHEN n %% 2 = 0 THEN -n / 1000 ELSE n END, %(now)s, %(now)s
        FROM generate_series(1, %(rows)s) AS n
    """,
    "delayed_queue_dead_letter": """
        INSERT INTO delayed_queue_dead_letter
            ("pKey", "pKind", payload, attempts, reason, "lastError", "scheduledAtInitially",
             "createdAt", "diedAt", fingerprint)
        SELECT 'key-' || n, CASE WHEN n %% 4 = 3 THEN 'later|json' ELSE 'bulk|json' END,
            %(payload)s, 3, 'exhausted', repeat('Traceback ', 20), 0, 0, %(now)s - 3600000 + n / 3,
            left(md5((n %% 5000)::text), 16)
        FROM generate_series(1, %(rows)s) AS n
    """,
    "delayed_queue_task_result": """
        INSERT INTO delayed_queue_task_result
            (id, task, backend, "pKind", payload, status, "enqueuedAt", "scheduledAt", "finishedAt")
        SELECT (lpad(to_hex(%(now)s + n / 100), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))
            ::uuid, 'shop.tasks.of_' || n %% 40, 'default', 'statements-and-reminders|json',
            %(payload)s, CASE WHEN n %% 100 = 0 THEN 'FAILED' ELSE 'SUCCESSFUL' END, %(now)s,
            %(now)s, %(now)s + n
        FROM generate_series(1::bigint, %(rows)s) AS n
    """,
    "delayed_queue_callback_attempt": """
        INSERT INTO delayed_queue_callback_attempt
            (key, topic, kind, "webhookId", attempt, "startedAt", duration, status)
        SELECT 'job-' || n / 2, 'refunds', 'refunds|callback', 'msg_' || n, 1 + n %% 2, %(now)s + n,
            12, 200
        FROM generate_series(1::bigint, %(rows)s) AS n
    """,
    "delayed_queue_notification": """
        INSERT INTO delayed_queue_notification
            (id, tenant, source, channel, priority, category, recipient, recipient_hash, template,
             subject, body, html, send_at, dedupe_key, callback_url, status, attempts, provider,
             provider_id, outcome, error_class, created_at, ended_at)
        SELECT (lpad(to_hex(%(now)s + n / 100), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))
            ::uuid, 'shop', 'api', 'email', 'normal', '', 'ada@example.org',
            decode(md5((n / 10)::text), 'hex'), '', 'Your order', 'It is here.', '', now(), '', '',
            CASE WHEN n %% 100 = 0 THEN 'FAILED' ELSE 'SUCCESSFULLY_PROCESSED' END, 1, 'smtp', '',
            '', '', now(), now()
        FROM generate_series(1::bigint, %(rows)s) AS n
    """,
}
_PLAIN: Final = """
SELECT indexname, indexdef FROM pg_indexes
WHERE tablename = %s AND indexname NOT IN (SELECT conname FROM pg_constraint)
"""


class Case(NamedTuple):
    """A page, and what five requests of it took: seconds, and the CPU of both ends."""

    name: str
    seconds: list[float]
    server: float
    python: float

    def cells(self) -> list[str]:
        figures = (median(self.seconds), max(self.seconds), self.server, self.python)
        return [self.name, *(f"{each * 1000:.0f}" for each in figures)]


def main() -> None:
    """Fill a site with a row on every page, then millions in the large tables; ask for each."""
    options = _options()
    with _site(options.database_url or embedded_server()) as connection:
        report = Report(describe(connection))
        _fill(connection, options.rows)
        cases = sorted(_cases(), key=lambda each: -median(each.seconds))
    head = ("page", "median, ms", "worst", "server's CPU", "Python's CPU")
    title = f"The pages beside {options.rows:,} rows of each kind; {ROUNDS} requests of each, warm"
    report.tables += [Table(title, head, [each.cells() for each in cases])]
    report.data = {each.name: each.seconds for each in cases}
    report.write(options)
    slow = [each.name for each in cases if median(each.seconds) > LIMIT]
    say(f"Above {LIMIT * 1000:.0f} ms: {', '.join(slow) or 'none'}.")


def _options() -> Namespace:
    parser = parser_for("pages", __doc__)
    parser.add_argument("--rows", type=int, help="of each table (10,000,000; quick 200,000)")
    options = parser.parse_args()
    options.rows = options.rows or (200_000 if options.quick else 10_000_000)
    return options


@contextmanager
def _site(server: str) -> Iterator[psycopg.Connection[Any]]:
    """Create a database with all apps and the gallery; yield a connection to it, then drop it."""
    name = f"delayed_queue_pages_{os.getpid()}"
    place = conninfo_to_dict(server)
    with psycopg.connect(server, autocommit=True) as maintenance:
        maintenance.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            os.environ["DATABASE_URL"] = (
                f"postgres://{place.get('user', '')}@:{place.get('port', 5432)}/{name}"
                f"?host={place['host']}"
            )
            os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
            _furnish()
            with psycopg.connect(server, dbname=name, autocommit=True) as connection:
                yield connection
        finally:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
            maintenance.execute(drop.format(sql.Identifier(name)))


def _furnish() -> None:
    django.setup()
    from django.core.management import call_command
    from django.test.utils import setup_test_environment

    setup_test_environment()
    # Apps of the tests have no migrations.
    call_command("migrate", verbosity=0, run_syncdb=True)
    from tests.support import gallery

    gallery.furnish()


def _fill(connection: psycopg.Connection[Any], rows: int) -> None:
    facts = {"rows": rows, "now": int(time.time() * 1000), "payload": b"x" * 100}
    connection.execute("SET synchronous_commit = off")
    connection.execute("SET maintenance_work_mem = '256MB'")
    for table, fill in FILLS.items():
        began = time.perf_counter()
        # Made anew at the end, which takes a fraction of the time; fresh, as after a REINDEX.
        indexes = connection.execute(_PLAIN, (table,)).fetchall()
        for name, _ in indexes:
            connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))
        connection.execute(fill, facts)
        for _, definition in indexes:
            # Of a table in partitions also on those that are there.
            connection.execute(definition.replace(" ON ONLY ", " ON "))
        connection.execute(sql.SQL("VACUUM ANALYZE {}").format(sql.Identifier(table)))
        say(f"{table}: {rows:,} rows in {time.perf_counter() - began:.0f} s")


def _pages() -> dict[str, str]:
    """Return the pages of the gallery, and the lists by what they can be asked for."""
    from django.utils.http import urlencode

    from tests.support import gallery

    found = gallery.pages()
    lists = {
        "delayed_queue_message": [{"kind": BULK}, {"kind": BULK, "state": "due"},
                                  {"kind": BULK, "state": "scheduled"}, {"state": "leased"},
                                  {"state": "expired"}, {"q": "key-4711"}, {"q": "none"}],
        "delayed_queue_deadletter": [{"kind": BULK}, {"kind": BULK, "died": "hour"},
                                     {"q": "key-4711"}],
        "delayed_queue_tasks_taskresult": [{"status": "FAILED"}, {"task": "shop.tasks.of_7"}],
        "delayed_queue_http_callbackattempt": [{"q": "job-4711"}, {"topic": "refunds"}],
        "delayed_queue_notifications_notification": [{"status": "FAILED"}],
    }  # fmt: skip
    for name, queries in lists.items():
        path = found[f"{name}-list"]
        found |= {f"{name}-list?{urlencode(each)}": f"{path}?{urlencode(each)}" for each in queries}
    query = urlencode({"kind": BULK})
    found["failures of a queue"] = f"{found['failures-queues']}?{query}"
    history = found["history-1h"].partition("?")[0]
    found |= {
        f"history of bulk, {each}": f"{history}?{query}&range={each}" for each in ("1h", "7d")
    }
    return found


def _cases() -> Iterator[Case]:
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client()
    client.force_login(get_user_model().objects.create_superuser("operator"))
    for name, path in _pages().items():
        _taken(client, path)
        began, server = time.process_time(), _server_seconds()
        seconds = [_taken(client, path) for _ in range(ROUNDS)]
        python, server = time.process_time() - began, _server_seconds() - server
        yield Case(name, seconds, server / ROUNDS, python / ROUNDS)


def _taken(client: Client, path: str) -> float:
    began = time.perf_counter()
    status = client.get(path).status_code
    if status != 200:
        raise RuntimeError(f"{path} was answered with {status}.")
    return time.perf_counter() - began


def _server_seconds() -> float:
    """Return the CPU that our session has had."""
    from django.db import connection

    connection.ensure_connection()
    spent = Path(f"/proc/{connection.connection.info.backend_pid}/schedstat").read_text()
    return int(spent.split()[0]) / 1e9


if __name__ == "__main__":
    main()
