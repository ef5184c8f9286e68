"""Two tables of 200,000 rows each and the small ones, in a transaction that is never committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from django.db import connections

from delayed_queue.spark.source.offering import CREATE_STAGE
from tests.plans.pipeline_rows import ARCHIVES, FILES, LEDGER, OFFERED, REPORTS, STAGE
from tests.plans.task_rows import PRIORITIES, TASKS

NOW: Final = 1_800_000_000_000
ROWS: Final = 200_000
_TABLES: Final = (
    "delayed_queue, delayed_queue_dead_letter, delayed_queue_schedule, delayed_queue_worker, "
    "delayed_queue_limit, delayed_queue_bulk_run, delayed_queue_topic, "
    "delayed_queue_idempotency_key, "
    "delayed_queue_rate, delayed_queue_token, delayed_queue_slot, delayed_queue_endpoint, "
    "delayed_queue_host, delayed_queue_callback_attempt, "
    "delayed_queue_offer_ledger, delayed_queue_offer_stage, delayed_queue_archive, "
    "delayed_queue_archive_file, "
    "delayed_queue_report, delayed_queue_task_result, delayed_queue_task_priority, "
    "delayed_queue_sample"
)

# In a scrambled order, so that neighbours in time are strangers on the pages: what the planner
# fears most of an index. `n * 7919 % 200000` meets every n once.
# bulk: 100,000 due at the same millisecond. due: 30,000. scheduled: 40,000 in the coming weeks.
# leased: 10,000 in batches of 100. mixed: 5,000 each of due, expired, leased, scheduled. Of bulk,
# due and mixed every other message is a callback to one host, the rest to another.
_MESSAGES: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", "lockUuid",
    attempts, headers
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
    0,
    CASE WHEN n NOT BETWEEN 130000 AND 179999 THEN
        jsonb_build_object('url', 'https://host-' || n %% 2 || '/hook')
    END
FROM (SELECT i * 7919::bigint %% %(rows)s AS n FROM generate_series(1, %(rows)s) AS i) AS scrambled
"""

_LETTERS: Final = """
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt",
    fingerprint
)
SELECT
    CASE WHEN n < 100000 THEN 'bulk|json' WHEN n < 150000 THEN 'due|json' ELSE 'mixed|json' END,
    'dead-' || n,
    convert_to(repeat('x', 100), 'UTF8'),
    3,
    CASE WHEN n %% 2 = 0 THEN 'rejected' ELSE 'attempts exhausted: ValueError' END,
    0,
    0,
    CASE WHEN n < 100000 THEN %(now)s - 60000 ELSE %(now)s - n END,
    lpad((n %% 50)::text, 16, '0')
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
    name, host, pid, holder, queues, version, "startedAt", "heartbeatAt", rates
)
SELECT
    'worker-' || n, 'host', n, lpad(to_hex(n), 8, '0'), '["bulk", "due"]', '1.0', 0,
    %(now)s - CASE WHEN n < 100 THEN n * 100 ELSE n * 1000 END, '{"bulk": 2.5}'
FROM (SELECT i * 7919::bigint %% 10000 AS n FROM generate_series(1, 10000) AS i) AS scrambled
"""
# Most have ended; of those in progress a tenth is paused.
_RUNS: Final = """
INSERT INTO delayed_queue_bulk_run (
    action, "pKind", fingerprint, "diedUntil", "newestId", total, "isTotalCut", "createdAt",
    "nextAt", state
)
SELECT
    'redrive', 'kind-' || n, 'a', 0, 0, 1, false, 0, %(now)s + n,
    CASE WHEN n > 1000 THEN 'done' WHEN n %% 10 = 0 THEN 'paused' ELSE 'running' END
FROM (SELECT i * 7919::bigint %% 10000 AS n FROM generate_series(1, 10000) AS i) AS scrambled
"""
_PAUSES: Final = """
INSERT INTO delayed_queue_limit ("pKind", "pausedAt", "pausedBy", reason)
SELECT 'paused-' || n || '|json', %(now)s, 'operator', 'maintenance'
FROM generate_series(1, 2000) AS n
"""
# A queue that is full: of each of 200 groups a hundred messages, of which 90 are due, one is leased
# and one waits for a retry; the others come later. Every tenth group has limits of its own. One
# group alone, of 5,000 messages. And 200 groups in order, each of a hundred, nothing of which is
# leased; of every second one waits for a retry.
_GROUPED: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", "lockUuid",
    "group"
)
SELECT
    'grouped-' || n, 'grouped|json', convert_to(repeat('x', 100), 'UTF8'),
    %(now)s + CASE WHEN n / 200 < 90 THEN n - 100000 ELSE n END,
    %(now)s + CASE WHEN n / 200 < 92 THEN n - 100000 ELSE n END,
    %(now)s - 1000000,
    CASE WHEN n / 200 = 90 THEN 'held-' || n END,
    'group-' || lpad((n %% 200)::text, 3, '0')
FROM (SELECT i * 7919::bigint %% 20000 AS n FROM generate_series(1, 20000) AS i) AS scrambled
UNION ALL
SELECT
    'one-' || n, 'one|json', convert_to(repeat('x', 100), 'UTF8'), %(now)s - n, %(now)s - n,
    %(now)s - 1000000, NULL, 'one'
FROM generate_series(1, 5000) AS n
UNION ALL
SELECT
    'ordered-' || n, 'ordered|json', convert_to(repeat('x', 100), 'UTF8'),
    %(now)s + CASE WHEN n %% 200 < 100 AND n / 200 = 50 THEN -1 ELSE n - 100000 END,
    %(now)s + n - 100000, %(now)s - 1000000, NULL,
    'group-' || lpad((n %% 200)::text, 3, '0')
FROM (SELECT i * 7919::bigint %% 20000 AS n FROM generate_series(1, 20000) AS i) AS scrambled
"""
_LIMITS: Final = """
INSERT INTO delayed_queue_limit (
    "pKind", "group", concurrency, "blocksOnDead", "spentUntil", "isOrdered"
)
SELECT kind, '', CASE WHEN kind = 'grouped|json' THEN 2 END, true, NULL, kind = 'ordered|json'
FROM unnest(ARRAY['grouped|json', 'one|json', 'ordered|json']) AS kind
UNION ALL
SELECT 'grouped|json', 'group-' || lpad(n::text, 3, '0'), 5, false, %(now)s, false
FROM generate_series(0, 199, 10) AS n
"""
# The kinds of messages are topics too, in four shards; and answers, a second apart.
_TOPICS: Final = """
INSERT INTO delayed_queue_topic (name, shards, ladder, jitter, "createdAt")
SELECT name, 4, '', 0, %(now)s
FROM unnest(ARRAY['bulk', 'due', 'scheduled', 'leased', 'mixed']) AS name
UNION ALL
SELECT 'topic-' || n, 1, '', 0, %(now)s
FROM generate_series(1, 10000) AS n
"""
_ANSWERS: Final = """
INSERT INTO delayed_queue_idempotency_key (
    scope, key, "requestHash", status, answer, "createdAt"
)
SELECT 'token-' || n %% 10, 'key-' || n, sha256('x'), 202, '{}', %(now)s - n * 1000
FROM (SELECT i * 7919::bigint %% 20000 AS n FROM generate_series(1, 20000) AS i) AS scrambled
"""

# Half of the buckets are full, half are booked for longer than their burst.
_RATES: Final = """
INSERT INTO delayed_queue_rate (name, "bookedUntil")
SELECT 'rate-' || n, %(now)s::bigint * 1000 + CASE WHEN n < 10000 THEN -1000 ELSE 200000 END
FROM (SELECT i * 7919::bigint %% 20000 AS n FROM generate_series(1, 20000) AS i) AS scrambled
"""


# As many as a large company has programs.
_TOKENS: Final = """
INSERT INTO delayed_queue_token (name, prefix, digest, topics, verbs, "createdAt")
SELECT
    'token-' || n, 'dq_', encode(sha256(convert_to(n::text, 'UTF8')), 'hex'), '["*"]', '["add"]',
    %(now)s
FROM (SELECT i * 7919::bigint %% 20000 AS n FROM generate_series(1, 20000) AS i) AS scrambled
"""
# Ten prefixes for each of a thousand origins; ten holders of each slot; hosts of which half are
# open; a hundred attempts for each of a thousand keys, in ten topics.
_ENDPOINTS: Final = """
INSERT INTO delayed_queue_endpoint (id, origin, prefix, secret, "createdAt")
SELECT
    1000000 + n, 'https://host-' || n % 1000,
    'https://host-' || n % 1000 || '/' || n / 1000, 'x', 0
FROM (SELECT i * 7919::bigint % 10000 AS n FROM generate_series(1, 10000) AS i) AS scrambled
""".replace("%", "%%")
_SLOTS: Final = """
INSERT INTO delayed_queue_slot (endpoint_id, holder, held, "heldUntil")
SELECT 1000000 + n % 1000, 'holder-' || n / 1000, 1, %(now)s + n
FROM (SELECT i * 7919::bigint % 10000 AS n FROM generate_series(1, 10000) AS i) AS scrambled
""".replace("% ", "%% ")
_HOSTS: Final = """
INSERT INTO delayed_queue_host (name, "openUntil")
SELECT 'host-' || n || ':443', CASE WHEN n % 2 = 0 THEN %(now)s - 1 END
FROM (SELECT i * 7919::bigint % 10000 AS n FROM generate_series(1, 10000) AS i) AS scrambled
""".replace("% ", "%% ")
_ATTEMPTS: Final = """
INSERT INTO delayed_queue_callback_attempt (
    key, topic, kind, "webhookId", attempt, "startedAt", duration
)
SELECT 'key-' || n % 1000, 'topic-' || n % 10, 'topic|callback', 'msg', 1, %(now)s - n * 1000, 1
FROM (SELECT i * 7919::bigint % 100000 AS n FROM generate_series(1, 100000) AS i) AS scrambled
""".replace("% ", "%% ")


# Eight days of a hundred queues would be a million rows: ten queues, and the marks of the minutes.
SAMPLES: Final = """
INSERT INTO delayed_queue_sample ("pKind", minute, due, scheduled, leased, dead, late, times)
SELECT
    CASE queue WHEN 0 THEN '' ELSE 'kind-' || queue END, %(now)s / 60000 - minute, 1, 2, 3, 4, 5,
    ARRAY[(5 << 25) + 100, (40 << 25) + 100]
FROM generate_series(0, 10) AS queue, generate_series(0, 11519) AS minute
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
                *(
                    _MESSAGES,
                    _LETTERS,
                    _SCHEDULES,
                    _TICKS,
                    _WORKERS,
                    _GROUPED,
                    _PAUSES,
                    _LIMITS,
                    _RUNS,
                    _TOPICS,
                    _ANSWERS,
                ),
                *(_RATES, _TOKENS, _ENDPOINTS, _SLOTS, _HOSTS, _ATTEMPTS),
                *(LEDGER, STAGE, OFFERED),
                *(TASKS, PRIORITIES, SAMPLES),
            ):
                connection.execute(rows, {"now": NOW, "rows": ROWS})
            for rows in (ARCHIVES, FILES, REPORTS):
                connection.execute(rows, {})
            yield connection
    finally:
        connection.close()


# Tables that were empty when autovacuum came by. Of the queue PostgreSQL has then counted none, on
# many pages: however many come, it takes one row for all there are.
_DRAIN: Final = """
UPDATE pg_class
SET reltuples = CASE WHEN oid = 'delayed_queue'::regclass THEN 0 ELSE 1 END, relpages = 100
WHERE oid IN ('delayed_queue'::regclass, 'delayed_queue_dead_letter'::regclass)
"""


@pytest.fixture(scope="module", params=["never analyzed", "drained", "analyzed"])
def tables(
    request: pytest.FixtureRequest, filled: psycopg.Connection[Any]
) -> psycopg.Connection[Any]:
    """The same without statistics, then with those of an empty queue, then with its own.

    In this order: neither can be undone.
    """
    if request.param == "analyzed":
        filled.execute(f"ANALYZE {_TABLES}")
    elif request.param == "drained":
        filled.execute(_DRAIN)
    return filled
