"""Two tables of 200,000 rows each and the small ones, in a transaction that is never committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from django.db import connections

from delayed_queue.spark.offering import CREATE_STAGE

NOW: Final = 1_800_000_000_000
ROWS: Final = 200_000
_TABLES: Final = (
    "delayed_queue, delayed_queue_dead_letter, delayed_queue_schedule, delayed_queue_worker, "
    "delayed_queue_paused, delayed_queue_offer_ledger, delayed_queue_offer_stage, "
    "delayed_queue_archive, delayed_queue_report"
)

# In a scrambled order, so that neighbours in time are strangers on the pages: what the planner
# fears most of an index. `n * 7919 % 200000` meets every n once.
# bulk: 100,000 due at the same millisecond. due: 30,000. scheduled: 40,000 in the coming weeks.
# leased: 10,000 in batches of 100. mixed: 5,000 each of due, expired, leased, scheduled.
_MESSAGES: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", "lockUuid",
    attempts
)
SELECT
    'key-' || n,
    CASE
        WHEN n < 100000 THEN 'bulk|json'
        WHEN n < 130000 THEN 'due|json'
        WHEN n < 170000 THEN 'scheduled|json'
        WHEN n < 180000 THEN 'leased|json'
        ELSE 'mixed|json'
    END,
    convert_to(repeat('x', 100), 'UTF8'),
    %(now)s + CASE
        WHEN n < 100000 THEN -60000
        WHEN n < 130000 THEN n - 200000
        WHEN n < 170000 THEN n * 10
        WHEN n < 180000 THEN n
        WHEN n < 185000 THEN n - 200000
        WHEN n < 190000 THEN n
        WHEN n < 195000 THEN n - 300000
        ELSE n
    END,
    %(now)s - 1000000,
    %(now)s - 1000000,
    CASE WHEN n BETWEEN 170000 AND 179999 OR n >= 190000 THEN 'lease-' || n / 100 END,
    0
FROM (SELECT i * 7919::bigint %% %(rows)s AS n FROM generate_series(1, %(rows)s) AS i) AS scrambled
"""

_LETTERS: Final = """
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt"
)
SELECT
    CASE WHEN n < 100000 THEN 'bulk|json' WHEN n < 150000 THEN 'due|json' ELSE 'mixed|json' END,
    'dead-' || n,
    convert_to(repeat('x', 100), 'UTF8'),
    3,
    CASE WHEN n %% 2 = 0 THEN 'rejected' ELSE 'attempts exhausted: ValueError' END,
    0,
    0,
    CASE WHEN n < 100000 THEN %(now)s - 60000 ELSE %(now)s - n END
FROM (SELECT i * 7919::bigint %% %(rows)s AS n FROM generate_series(1, %(rows)s) AS i) AS scrambled
"""

# Programs' own prefixes, and 100 that are described in full. A hundred ticks of one prefix.
_SCHEDULES: Final = """
INSERT INTO delayed_queue_schedule ("pKind", "keyPrefix", queue, "type")
SELECT
    'scheduled|json', 'tick-' || n, 'scheduled', CASE WHEN n %% 200 = 0 THEN 'cron' ELSE '' END
FROM (SELECT i * 7919::bigint %% 20000 AS n FROM generate_series(1, 20000) AS i) AS scrambled
"""
_TICKS: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT
    'tick-50/' || md5('50') || '/' || %(now)s + n * 60000, 'scheduled|json', 'x',
    %(now)s + 10000000000 + n, %(now)s + 10000000000 + n, %(now)s
FROM generate_series(1, 100) AS n
"""

# A hundred workers alive; the rest fell silent one by one, a second apart.
_WORKERS: Final = """
INSERT INTO delayed_queue_worker (
    name, host, pid, queues, version, "startedAt", "heartbeatAt", rates
)
SELECT
    'worker-' || n, 'host', n, '["bulk", "due"]', '1.0', 0,
    %(now)s - CASE WHEN n < 100 THEN n * 100 ELSE n * 1000 END, '{"bulk": 2.5}'
FROM (SELECT i * 7919::bigint %% 10000 AS n FROM generate_series(1, 10000) AS i) AS scrambled
"""
_PAUSES: Final = """
INSERT INTO delayed_queue_paused ("pKind", "pausedAt", "pausedBy", reason)
SELECT 'paused-' || n || '|json', %(now)s, 'operator', 'maintenance'
FROM generate_series(1, 2000) AS n
"""
# Two thousand jobs of nine chunks and a closing row each, a minute apart.
_LEDGER: Final = """
INSERT INTO delayed_queue_offer_ledger (
    job, batch, "partition", chunk, digest, "rows", created, updated, "recordedAt"
)
SELECT
    'job-' || n / 10, 0, n %% 10 - 1, 0, md5(n::text), 1000, 900, 50, %(now)s - n / 10 * 60000
FROM (SELECT i * 7919::bigint %% 20000 AS n FROM generate_series(1, 20000) AS i) AS scrambled
"""
# Twenty jobs of a thousand rows, each by two attempts of which one counts; half of the keys are
# in the queue. Then the session's own table for one chunk.
_STAGE: Final = """
INSERT INTO delayed_queue_offer_stage (
    job, attempt, "partition", "position", key, payload, "dueAt", "recordedAt"
)
SELECT
    'job-' || n / 1000, 'attempt-' || n / 500, n %% 2, n,
    CASE WHEN n %% 4 < 2 THEN 'key-' ELSE 'new-' END || n, 'y', %(now)s, %(now)s - n / 1000 * 60000
FROM (SELECT i * 7919::bigint %% 20000 AS n FROM generate_series(1, 20000) AS i) AS scrambled
"""
_OFFERED: Final = """
INSERT INTO pg_temp.delayed_queue_offered ("position", turn, key, payload, due_at)
SELECT n, 0, CASE WHEN n %% 2 = 0 THEN 'key-' ELSE 'new-' END || n * 97, 'y', %(now)s
FROM generate_series(1, 1000) AS n
"""


# Archives that are done, and one of each table that is not; reports, far more than are kept.
_ARCHIVES: Final = """
INSERT INTO delayed_queue_archive (
    source, "keyColumn", "ageColumn", lower, upper, cutoff, expected, destination, state, holder,
    "heldUntil", "createdAt"
)
SELECT
    'table-' || n / 100, 'id', 'at', '1', '2', 0, 1, 'lake',
    CASE WHEN n %% 100 = 0 THEN 'published' ELSE 'pruned' END, 'host:1:x', 0, 0
FROM generate_series(1, 5000) AS n
"""
_REPORTS: Final = """
INSERT INTO delayed_queue_report ("createdAt", figures, plots)
SELECT 0, '{}', '{}'
FROM generate_series(1, 5000)
"""


@pytest.fixture(scope="module")
def filled(django_db_setup: None, django_db_blocker: Any) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that sees both tables filled and never analyzed.

    Nobody else sees the rows, so autovacuum cannot analyze them in the middle of a test.
    """
    with django_db_blocker.unblock():
        alias = connections["default"].copy()
        alias.connect()
    connection = alias.connection
    try:
        with connection.transaction(force_rollback=True):
            # A new file: its statistics are unknown, and vanish with the transaction.
            connection.execute(f"TRUNCATE {_TABLES}")
            connection.execute(
                "DELETE FROM pg_statistic WHERE starelid = ANY (%s::regclass[])",
                [_TABLES.split(", ")],
            )
            connection.execute("SET LOCAL jit = off")
            connection.execute(CREATE_STAGE)
            for rows in (
                _MESSAGES, _LETTERS, _SCHEDULES, _TICKS, _WORKERS, _PAUSES, _LEDGER,
                _STAGE, _OFFERED,
            ):  # fmt: skip
                connection.execute(rows, {"now": NOW, "rows": ROWS})
            for rows in (_ARCHIVES, _REPORTS):
                connection.execute(rows, {})
            yield connection
    finally:
        connection.close()


@pytest.fixture(scope="module", params=["never analyzed", "analyzed"])
def tables(
    request: pytest.FixtureRequest, filled: psycopg.Connection[Any]
) -> psycopg.Connection[Any]:
    """The same without statistics, then with them: ANALYZE cannot be undone."""
    if request.param == "analyzed":
        filled.execute(f"ANALYZE {_TABLES}")
    return filled
