"""The rows that the statements are planned over."""

from __future__ import annotations

from typing import Final

NOW: Final = 1_800_000_000_000
ROWS: Final = 200_000


def scrambled(table: str, count: int, **columns: str) -> str:
    """Return an INSERT of ``count`` rows; each column is an expression over ``n`` from 0.

    The order is scrambled, so that neighbours in time lie on different pages: the worst case for
    an index. ``n * 7919 % count`` takes each value once.
    """
    names = ", ".join(f'"{each}"' for each in columns)
    return f"""
        INSERT INTO {table} ({names}) SELECT {", ".join(columns.values())}
        FROM (SELECT i * 7919::bigint % {count} AS n FROM generate_series(1, {count}) AS i) AS s
    """  # noqa: S608


# A payload of a hundred bytes.
_JSON: Final = """('"' || repeat('x', 98) || '"')::bytea"""
# bulk: 100,000 due at the same millisecond. due: 30,000. scheduled: 40,000 in the coming weeks.
# leased: 10,000 in batches of 100. mixed: 5,000 each of due, expired, leased, scheduled. Every
# other message of bulk, due and mixed is a callback to one host, the rest to another.
_MESSAGES: Final = scrambled(
    "delayed_queue", ROWS, pKey="'key-' || n", payload=_JSON,
    pKind="""CASE
        WHEN n < 100000 THEN 'bulk|json' WHEN n < 130000 THEN 'due|json'
        WHEN n < 170000 THEN 'scheduled|json' WHEN n < 180000 THEN 'leased|json' ELSE 'mixed|json'
    END""",
    scheduledAt=f"""{NOW} + CASE
        WHEN n < 100000 THEN -60000 WHEN n < 130000 THEN n - 200000 WHEN n < 170000 THEN n * 10
        WHEN n < 180000 THEN n WHEN n < 185000 THEN n - 200000 WHEN n < 190000 THEN n
        WHEN n < 195000 THEN n - 300000 ELSE n
    END""",
    scheduledAtInitially=f"{NOW} - 1000000", createdAt=f"{NOW} - 1000000", attempts="0",
    lockUuid="CASE WHEN n BETWEEN 170000 AND 179999 OR n >= 190000 THEN 'lease-' || n / 100 END",
    headers="""CASE WHEN n NOT BETWEEN 130000 AND 179999
        THEN jsonb_build_object('url', 'https://host-' || n % 2 || '/hook') END""",
)  # fmt: skip
_LETTERS: Final = scrambled(
    "delayed_queue_dead_letter", ROWS, pKey="'dead-' || n", payload="repeat('x', 100)::bytea",
    pKind="CASE WHEN n < 100000 THEN 'bulk|json' WHEN n < 150000 THEN 'due|json' "
    "ELSE 'mixed|json' END",
    attempts="3", scheduledAtInitially="0", createdAt="0",
    reason="CASE WHEN n % 2 = 0 THEN 'rejected' ELSE 'attempts exhausted: ValueError' END",
    diedAt=f"CASE WHEN n < 100000 THEN {NOW} - 60000 ELSE {NOW} - n END",
    fingerprint="lpad((n % 50)::text, 16, '0')",
)  # fmt: skip

# A full queue: 200 groups of a hundred messages each: 90 due, one leased, one waiting for a retry,
# the others later. Every tenth group has its own limits.
_FULL: Final = scrambled(
    "delayed_queue", 20_000, pKey="'grouped-' || n", pKind="'grouped|json'",
    payload=_JSON,
    scheduledAt=f"{NOW} + CASE WHEN n / 200 < 90 THEN n - 100000 ELSE n END",
    scheduledAtInitially=f"{NOW} + CASE WHEN n / 200 < 92 THEN n - 100000 ELSE n END",
    createdAt=f"{NOW} - 1000000", lockUuid="CASE WHEN n / 200 = 90 THEN 'held-' || n END",
    group="'group-' || lpad((n % 200)::text, 3, '0')",
)  # fmt: skip
_ONE_GROUP: Final = scrambled(
    "delayed_queue", 5_000, pKey="'one-' || n", pKind="'one|json'",
    payload=_JSON, scheduledAt=f"{NOW} - 1 - n",
    scheduledAtInitially=f"{NOW} - 1 - n", createdAt=f"{NOW} - 1000000", group="'one'",
)  # fmt: skip
# 200 groups in order, nothing leased; in every second one a message waits for a retry.
_ORDERED: Final = scrambled(
    "delayed_queue", 20_000, pKey="'ordered-' || n", pKind="'ordered|json'",
    payload=_JSON,
    scheduledAt=f"{NOW} + CASE WHEN n % 200 < 100 AND n / 200 = 50 THEN -1 ELSE n - 100000 END",
    scheduledAtInitially=f"{NOW} + n - 100000", createdAt=f"{NOW} - 1000000",
    group="'group-' || lpad((n % 200)::text, 3, '0')",
)  # fmt: skip
# 1,000 closed batches, each with ten members, of which the last lies behind the others. Their ids
# start at 1 after other tests, too.
_BATCHES: Final = (
    "ALTER TABLE delayed_queue_batch ALTER COLUMN id RESTART",
    scrambled(
        "delayed_queue_batch", 1_000, pKind="'members|json'", createdAt="0", closedAt="0",
        waitsForDead="n % 2 = 0", thenKind="'then|json'", thenKey="'then-' || n",
        thenPayload="'x'::bytea",
    ),
    scrambled(
        "delayed_queue", 10_000, pKey="'member-' || n", pKind="'members|json'",
        payload=_JSON, scheduledAt=f"{NOW} + n",
        scheduledAtInitially=f"{NOW} + n", createdAt="0",
        batchId="1 + n % 1000",
    ),
)  # fmt: skip
_LIMITS: Final = (
    scrambled("delayed_queue_limit", 2_000, pKind="'paused-' || n || '|json'", pausedAt=f"{NOW}"),
    scrambled(
        "delayed_queue_limit", 3, concurrency="CASE WHEN n = 0 THEN 2 END",
        pKind="(ARRAY['grouped|json', 'one|json', 'ordered|json'])[n + 1]",
        blocksOnDead="true", isOrdered="n = 2",
    ),
    scrambled(
        "delayed_queue_limit", 20, pKind="'grouped|json'", concurrency="5", spentUntil=f"{NOW}",
        group="'group-' || lpad((n * 10)::text, 3, '0')",
    ),
)  # fmt: skip

# 20,000 prefixes, 100 of them described in full; a hundred ticks of one prefix.
_SCHEDULES: Final = scrambled(
    "delayed_queue_schedule", 20_000, pKind="'scheduled|json'", keyPrefix="'tick-' || n",
    queue="'scheduled'", type="CASE WHEN n % 200 = 0 THEN 'cron' ELSE '' END",
)  # fmt: skip
_TICKS: Final = scrambled(
    "delayed_queue", 100, pKey=f"'tick-50/' || md5('50') || '/' || {NOW} + n * 60000",
    pKind="'scheduled|json'", payload="'x'", scheduledAt=f"{NOW} + 10000000000 + n",
    scheduledAtInitially=f"{NOW} + 10000000000 + n", createdAt=f"{NOW}",
)  # fmt: skip

# A hundred workers are alive; the others stopped one by one, a second apart.
_WORKERS: Final = scrambled(
    "delayed_queue_worker", 10_000, name="'worker-' || n", host="'host'", pid="n",
    holder="lpad(to_hex(n), 8, '0')", queues="""'["bulk", "due"]'""", version="'1.0'",
    startedAt="0", rates="""'{"bulk": 2.5}'""",
    heartbeatAt=f"{NOW} - CASE WHEN n < 100 THEN n * 100 ELSE n * 1000 END",
)  # fmt: skip
# Most have ended; a tenth of the running ones is paused.
_RUNS: Final = scrambled(
    "delayed_queue_bulk_run", 10_000, action="'redrive'", pKind="'kind-' || n", fingerprint="'a'",
    diedUntil="0", newestId="0", total="1", isTotalCut="false", createdAt="0", nextAt=f"{NOW} + n",
    state="CASE WHEN n > 1000 THEN 'done' WHEN n % 10 = 0 THEN 'paused' ELSE 'running' END",
)  # fmt: skip
# A hundred queues would need a million rows for eight days: ten queues, and the minutes' marks.
_SAMPLES: Final = f"""
INSERT INTO delayed_queue_sample ("pKind", minute, due, scheduled, leased, dead, late, times)
SELECT
    CASE queue WHEN 0 THEN '' ELSE 'kind-' || queue END, {NOW} / 60000 - minute, 1, 2, 3, 4, 5,
    ARRAY[(5 << 25) + 100, (40 << 25) + 100]
FROM generate_series(0, 10) AS queue, generate_series(0, 11519) AS minute
"""  # noqa: S608

# Each kind of message is a topic, too, with four shards. Answers lie a second apart.
_TOPICS: Final = scrambled(
    "delayed_queue_topic", 10_005, createdAt=f"{NOW}",
    name="CASE WHEN n < 5 THEN (ARRAY['bulk', 'due', 'scheduled', 'leased', 'mixed'])[n + 1]"
    " ELSE 'topic-' || n END",
    shards="CASE WHEN n < 5 THEN 4 ELSE 1 END",
)  # fmt: skip
_ANSWERS: Final = scrambled(
    "delayed_queue_idempotency_key", 20_000, scope="'token-' || n % 10", key="'key-' || n",
    requestHash="sha256('x')", status="202", answer="'{}'", createdAt=f"{NOW} - n * 1000",
)  # fmt: skip
# Half of the buckets are full, half are booked beyond their burst.
_RATES: Final = scrambled(
    "delayed_queue_rate", 20_000, name="'rate-' || n",
    bookedUntil=f"{NOW} * 1000::bigint + CASE WHEN n < 10000 THEN -1000 ELSE 200000 END",
)  # fmt: skip
_TOKENS: Final = scrambled(
    "delayed_queue_token", 20_000, name="'token-' || n", prefix="'dq_'",
    digest="encode(sha256(convert_to(n::text, 'UTF8')), 'hex')", topics="""'["*"]'""",
    verbs="""'["add"]'""", createdAt=f"{NOW}",
)  # fmt: skip

# Ten prefixes for each of a thousand origins; ten holders of each slot; half of the hosts open;
# a hundred attempts for each of 200 keys, in ten topics.
_ENDPOINTS: Final = scrambled(
    "delayed_queue_endpoint", 10_000, id="1000000 + n", origin="'https://host-' || n % 1000",
    prefix="'https://host-' || n % 1000 || '/' || n / 1000", secret="'x'", createdAt="0",
)  # fmt: skip
_SLOTS: Final = scrambled(
    "delayed_queue_slot", 10_000, endpoint_id="1000000 + n % 1000", holder="'holder-' || n / 1000",
    heldUntil=f"{NOW} + n",
)  # fmt: skip
_HOSTS: Final = scrambled(
    "delayed_queue_host", 10_000, name="'host-' || n || ':443'",
    openUntil=f"CASE WHEN n % 2 = 0 THEN {NOW} - 1 END",
)  # fmt: skip
_ATTEMPTS: Final = scrambled(
    "delayed_queue_callback_attempt", 20_000, key="'key-' || n % 200",
    topic="'topic-' || n % 10", kind="'topic|callback'", webhookId="'msg'", attempt="1",
    startedAt=f"{NOW} - n * 1000", duration="1",
)  # fmt: skip

# Ids in the order of their numbers.
_RESULTS: Final = scrambled(
    "delayed_queue_task_result", 20_000, id="lpad(to_hex(n + 1), 32, '0')::uuid",
    task="'shop.tasks.task_' || n % 20", backend="'default'", pKind="'bulk|json'",
    payload="'{}'", status="CASE WHEN n % 10 = 0 THEN 'FAILED' ELSE 'SUCCESSFUL' END",
    enqueuedAt=f"{NOW} + n", scheduledAt=f"{NOW} + n", finishedAt=f"{NOW} + n",
)  # fmt: skip
_PRIORITIES: Final = scrambled(
    "delayed_queue_task_priority", 2_000, queue="'queue-' || n", priority="n % 100"
)

# Two thousand jobs of nine chunks and a closing row each, a minute apart.
_LEDGER: Final = scrambled(
    "delayed_queue_offer_ledger", 20_000, job="'job-' || n / 10", batch="0",
    partition="n % 10 - 1", chunk="0", digest="md5(n::text)", rows="1000", created="900",
    updated="50", recordedAt=f"{NOW} - n / 10 * 60000",
)  # fmt: skip
# Twenty jobs of a thousand rows, each by two attempts, one of them valid. Half of the keys are in
# the queue.
_STAGE: Final = scrambled(
    "delayed_queue_offer_stage", 20_000, job="'job-' || n / 1000", attempt="'attempt-' || n / 500",
    partition="n % 2", position="n", payload="'y'", dueAt=f"{NOW}",
    key="CASE WHEN n % 4 < 2 THEN 'key-' ELSE 'new-' END || n",
    recordedAt=f"{NOW} - n / 1000 * 60000",
)  # fmt: skip
# The session's own table for one chunk.
_OFFERED: Final = scrambled(
    "pg_temp.delayed_queue_offered", 1_000, turn="0", payload="'y'", due_at=f"{NOW}",
    key="CASE WHEN n % 2 = 0 THEN 'key-' ELSE 'new-' END || (n + 1) * 97",
)  # fmt: skip
# Fifty tables with one unfinished archive each, and reports.
_ARCHIVES: Final = scrambled(
    "delayed_queue_archive", 5_000, id="1000000 + n", source="'table-' || n / 100", path="'lake'",
    state="CASE WHEN n % 100 = 0 THEN 'written' ELSE 'pruned' END", createdAt="0",
)  # fmt: skip
_REPORTS: Final = scrambled(
    "delayed_queue_report", 5_000, createdAt="0", figures="'{}'", plots="'{}'"
)

# Rows that the SQL functions read.
QUEUES: Final = (_MESSAGES, _FULL, _ONE_GROUP, _ORDERED, *_LIMITS, *_BATCHES)
FILLS: Final = (
    *QUEUES, _LETTERS, _SCHEDULES, _TICKS, _WORKERS,
    _RUNS, _TOPICS, _ANSWERS, _RATES, _TOKENS, _ENDPOINTS, _SLOTS, _HOSTS, _ATTEMPTS,
    _LEDGER, _STAGE, _OFFERED, _RESULTS, _PRIORITIES, _SAMPLES, _ARCHIVES, _REPORTS,
)  # fmt: skip
TABLES: Final = tuple(
    dict.fromkeys(
        each.split()[2] for each in FILLS if not each.split()[2].startswith("pg_temp")
    )
)  # fmt: skip
