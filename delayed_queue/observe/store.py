"""Statements of samples, estimates, and the oldest snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.days import DailyTable
from delayed_queue.db.sql import CLOCK, rows_of

# The oldest holder that keeps dead rows of this database: one of its sessions, any session
# that writes (no later snapshot goes beyond it), a prepared transaction, a replication slot or a
# standby with feedback. Among equals a writer comes first: the others only inherited its age.
# A running VACUUM holds up nothing. A running statement with a recent snapshot took it at its
# start, since its transaction takes a new one for each statement.
# Reads: the lists of sessions, prepared transactions and slots.
OLDEST_SNAPSHOT: Final[LiteralString] = """
WITH holders AS (
    SELECT
        CASE backend_type WHEN 'walsender' THEN 'standby' ELSE 'session' END AS holder,
        pid::text AS name, COALESCE(application_name, '') AS application,
        COALESCE(usename, '')::text AS owner, COALESCE(state, '') AS state,
        NULLIF(datname, current_database())::text AS elsewhere,
        CASE WHEN backend_type = 'client backend' AND state = 'active'
                AND backend_xid IS NULL AND age(backend_xmin) < 100
            THEN query_start
            ELSE xact_start
        END AS since,
        age(backend_xid) AS own,
        CASE WHEN datname = current_database() OR backend_type = 'walsender'
            THEN age(backend_xmin)
        END AS seen
    FROM pg_stat_activity
    WHERE backend_type <> 'parallel worker'
        AND (datname IS NOT NULL OR backend_type = 'walsender')
        AND pid <> pg_backend_pid()
        AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
    UNION ALL
    SELECT
        'prepared transaction', gid, '', owner::text, '',
        NULLIF(database, current_database())::text, prepared, age(transaction), NULL
    FROM pg_prepared_xacts
    UNION ALL
    SELECT
        'replication slot', slot_name::text, '', '',
        CASE WHEN active THEN 'active' ELSE 'inactive' END, NULL, NULL, NULL, age(xmin)
    FROM pg_replication_slots
)
SELECT
    holder, name, application, owner, state, COALESCE(elsewhere, ''),
    extract(epoch FROM clock_timestamp() - since)::float8, GREATEST(own, seen)
FROM holders
WHERE GREATEST(own, seen) IS NOT NULL
ORDER BY GREATEST(own, seen) DESC, own DESC NULLS LAST, since
LIMIT 1
"""

# The cost of an old snapshot: dead rows, the slowest full scan of any live worker, and the number
# of sessions that the role may not see: without pg_read_all_stats, those of other users.
# Reads: worker_heartbeat.
SNAPSHOT_COST: Final[LiteralString] = f"""{CLOCK},
alive AS MATERIALIZED (
    SELECT scanned, "scanSeconds" AS seconds
    FROM delayed_queue_worker
    WHERE "heartbeatAt" > (SELECT now FROM clock) - 60000
    ORDER BY "heartbeatAt" DESC, id DESC
    LIMIT (SELECT 10000)
)
SELECT
    pg_stat_get_dead_tuples('delayed_queue'::regclass),
    COALESCE((SELECT scanned FROM alive ORDER BY seconds DESC LIMIT 1), ''),
    COALESCE((SELECT max(seconds) FROM alive), 0),
    (
        SELECT count(*)
        FROM pg_stat_activity
        WHERE backend_type IS NULL
            AND datname = current_database()
    )
"""


class SnapshotRow(NamedTuple):
    """The oldest holder of a snapshot, and its cost.

    ``seconds`` is the age of the transaction; None for standbys and slots. ``elsewhere`` names
    another database. ``dead_rows`` are those of the table of messages. ``scan_seconds`` is the time
    of a claim from the start of the queue ``scanned``. The role may not see ``hidden`` sessions.
    """

    holder: str
    name: str
    application: str
    owner: str
    state: str
    elsewhere: str
    seconds: float | None
    transactions: int
    dead_rows: int
    scanned: str
    scan_seconds: float
    hidden: int


def oldest_snapshot_row(using: str = db.DEFAULT_ALIAS) -> SnapshotRow | None:
    holder = db.fetch(using, OLDEST_SNAPSHOT, {})
    if not holder:
        return None
    return SnapshotRow(*holder[0], *db.fetch(using, SNAPSHOT_COST, {"now": None})[0])


# Estimate the messages and dead letters of each kind from a few hundred pages of each table, the
# same pages while it does not grow; nothing for small tables. The planner's own statistics would
# not do: they treat kind and schedule as independent.
# Reads: that many pages of the tables.
ESTIMATES: Final[LiteralString] = f"""{CLOCK},
shares AS MATERIALIZED (
    SELECT
        CASE WHEN pages < %(small)s::float8 THEN 0
            ELSE LEAST(100 * %(pages)s::float8 / pages, 100)
        END
            AS messages,
        CASE WHEN letters < %(small)s::float8 THEN 0
            ELSE LEAST(100 * %(pages)s::float8 / letters, 100)
        END
            AS letters
    FROM (
        SELECT
            pg_relation_size('delayed_queue') / 8192.0::float8 AS pages,
            pg_relation_size('delayed_queue_dead_letter') / 8192.0::float8 AS letters
    ) AS sizes
),
found AS (
    SELECT
        "pKind" AS kind,
        100 / (SELECT messages FROM shares) AS weight,
        count(*) FILTER (WHERE "scheduledAt" <= (SELECT now FROM clock)) AS due,
        count(*) FILTER (
            WHERE "scheduledAt" > (SELECT now FROM clock) AND "lockUuid" IS NULL
        ) AS scheduled,
        count(*) FILTER (
            WHERE "scheduledAt" > (SELECT now FROM clock) AND "lockUuid" IS NOT NULL
        ) AS leased,
        0 AS dead
    FROM delayed_queue TABLESAMPLE SYSTEM ((SELECT messages FROM shares)) REPEATABLE (1)
    GROUP BY "pKind"
    UNION ALL
    SELECT "pKind", 100 / (SELECT letters FROM shares), 0, 0, 0, count(*)
    FROM delayed_queue_dead_letter TABLESAMPLE SYSTEM ((SELECT letters FROM shares)) REPEATABLE (1)
    GROUP BY "pKind"
)
SELECT
    kind, sum(weight * due)::bigint, sum(weight * scheduled)::bigint, sum(weight * leased)::bigint,
    sum(weight * dead)::bigint
FROM found
GROUP BY kind
"""


# The minute of a sample: counts that arrive within 30 seconds of its end still belong to it.
_MINUTE: Final[LiteralString] = "((SELECT now FROM clock) - 30000) / 60000"

# Let one worker measure a minute. The row without a kind marks the minute as taken, with the
# versions of the live workers. No worker waits: the advisory lock is only tried.
# Returns the clock and the minute; NULL if another worker has it.
# Reads: worker_heartbeat, the primary key of samples.
TAKE_MINUTE: Final[LiteralString] = f"""{CLOCK},
taken AS (
    INSERT INTO delayed_queue_sample ("pKind", minute, versions)
    SELECT '', {_MINUTE}, (
        SELECT string_agg(DISTINCT version, ', ')
        FROM (
            SELECT version
            FROM delayed_queue_worker
            WHERE "heartbeatAt" > (SELECT now FROM clock) - %(age)s::bigint
            ORDER BY "heartbeatAt" DESC, id DESC
            LIMIT (SELECT %(limit)s::integer)
        ) AS live
    )
    WHERE pg_try_advisory_xact_lock(7310600482201522)
    ON CONFLICT ("pKind", minute) DO NOTHING
    RETURNING minute
)
SELECT now, (SELECT minute FROM taken)
FROM clock
"""

# Write the depths of queues at the end of a minute. Sorted, so that two writers of the same rows
# do not deadlock. Reads: the primary key of samples.
SAVE_DEPTHS: Final[LiteralString] = """
INSERT INTO delayed_queue_sample AS stored (
    "pKind", minute, due, scheduled, leased, dead, late
)
SELECT kind, %(minute)s::integer, due, scheduled, leased, dead, late
FROM unnest(
    %(kinds)b::text[], %(due)s::integer[], %(scheduled)s::integer[], %(leased)s::integer[],
    %(dead)s::integer[], %(late)s::integer[]
) AS measured (kind, due, scheduled, leased, dead, late)
ORDER BY kind COLLATE "C"
ON CONFLICT ("pKind", minute) DO UPDATE
SET due = EXCLUDED.due,
    scheduled = EXCLUDED.scheduled,
    leased = EXCLUDED.leased,
    dead = EXCLUDED.dead,
    late = EXCLUDED.late
"""

# Add the counts of a worker since its last report. An element of a histogram has its bucket in the
# upper six bits and the count in the lower 25. Sorted, as above.
# Reads: the primary key of samples.
ADD_COUNTS: Final[LiteralString] = f"""{CLOCK}
INSERT INTO delayed_queue_sample AS stored ("pKind", minute, done, failed, died, times, expired)
SELECT kind, {_MINUTE}, done, failed, died, times::integer[], expired
FROM unnest(
    %(kinds)b::text[], %(done)s::integer[], %(failed)s::integer[], %(died)s::integer[],
    %(times)b::text[], %(expired)b::integer[]
) AS counted (kind, done, failed, died, times, expired)
ORDER BY kind COLLATE "C"
ON CONFLICT ("pKind", minute) DO UPDATE
SET done = stored.done + EXCLUDED.done,
    failed = stored.failed + EXCLUDED.failed,
    died = stored.died + EXCLUDED.died,
    expired = COALESCE(stored.expired + EXCLUDED.expired, stored.expired, EXCLUDED.expired),
    times = ARRAY(
        SELECT ((each >> 25) << 25) + LEAST(sum(each & 33554431), 33554431)::integer
        FROM unnest(stored.times || EXCLUDED.times) AS each
        GROUP BY each >> 25
        ORDER BY each >> 25
    )
"""

# The history of queues by steps of some minutes: maximum depths, the last number of stored
# messages, and sums. Reads: the primary key of samples.
HISTORY: Final[LiteralString] = """
SELECT
    "pKind", minute / %(step)s::integer * %(step)s::integer,
    max(due), max(scheduled), max(leased), max(dead), max(late),
    (array_agg(due + scheduled + leased ORDER BY minute DESC) FILTER (WHERE due IS NOT NULL))[1],
    sum(done)::bigint, sum(failed)::bigint, sum(died)::bigint, COALESCE(sum(expired), 0)::bigint
FROM delayed_queue_sample
WHERE "pKind" = ANY (%(kinds)s::text[])
    AND minute >= %(since)s::integer
    AND minute < %(until)s::integer
GROUP BY 1, 2
"""

# The histograms of a queue by the same steps. Reads: the primary key of samples.
HISTOGRAMS: Final[LiteralString] = """
SELECT
    minute / %(step)s::integer * %(step)s::integer, each >> 25, sum(each & 33554431)::bigint
FROM delayed_queue_sample
CROSS JOIN LATERAL unnest(times) AS each
WHERE "pKind" = %(kind)s
    AND minute >= %(since)s::integer
    AND minute < %(until)s::integer
GROUP BY 1, 2
"""

# The steps in which any minute was sampled, with the versions of workers.
# Reads: the primary key of samples.
SAMPLED: Final[LiteralString] = """
SELECT minute / %(step)s::integer * %(step)s::integer, string_agg(versions, ', ')
FROM delayed_queue_sample
WHERE "pKind" = ''
    AND minute >= %(since)s::integer
    AND minute < %(until)s::integer
GROUP BY 1
ORDER BY 1
"""

# The last minute that was sampled, within a day. Not max(): PostgreSQL 15 reads the whole day for
# it until the table is analyzed. Reads: the primary key of samples, backwards.
LAST_SAMPLED: Final[LiteralString] = f"""{CLOCK}
SELECT now / 60000, (
    SELECT minute
    FROM delayed_queue_sample
    WHERE "pKind" = ''
        AND minute >= (SELECT now FROM clock) / 60000 - 1440
        AND minute <= (SELECT now FROM clock) / 60000
    ORDER BY minute DESC
    LIMIT 1
)
FROM clock
"""

# Delete expired samples outside the daily partitions, at most ``limit``.
# Reads: all of that partition, which is small.
PRUNE_SAMPLES: Final[LiteralString] = f"""{CLOCK}
DELETE FROM delayed_queue_sample_rest
WHERE ctid = ANY (ARRAY(
    SELECT ctid
    FROM delayed_queue_sample_rest
    WHERE minute < ((SELECT now FROM clock) - %(age)s::bigint) / 60000
    LIMIT %(limit)s::integer
))
"""
_MINUTES_A_DAY: Final = 1440

SAMPLES_BY_DAY: Final = DailyTable(
    "delayed_queue_sample", "minute", lambda day: day * _MINUTES_A_DAY, PRUNE_SAMPLES
)
MAX_LIVE: Final = 10_000
# Tables of fewer pages are counted, not estimated: at 60 bytes a row they have under 10,000 rows.
_SMALL_PAGES: Final = 75
# Pages read of a larger table: 2.4 MB, about 10 ms.
_SAMPLED_PAGES: Final = 300


class EstimateRow(NamedTuple):
    """The estimated messages of a kind."""

    kind: str
    due: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0


class DepthRow(NamedTuple):
    """The depth of a queue; ``late`` is in seconds."""

    kind: str
    due: int
    scheduled: int
    leased: int
    dead: int
    late: int


class CountsRow(NamedTuple):
    """A worker's counts of a queue; ``times`` is an array literal of PostgreSQL."""

    kind: str
    done: int
    failed: int
    died: int
    times: str
    expired: int | None = None


class Window(NamedTuple):
    """The minutes from ``since`` to before ``until``, in steps of ``step`` minutes."""

    since: int
    until: int
    step: int


def estimates(*, using: str = db.DEFAULT_ALIAS) -> list[EstimateRow]:
    params = {"small": _SMALL_PAGES, "pages": _SAMPLED_PAGES, "now": None}
    return rows_of(EstimateRow, db.fetch(using, ESTIMATES, params))


def take_minute(
    age: int, *, now: int | None = None, using: str = db.DEFAULT_ALIAS
) -> tuple[int, int | None]:
    """Return the database's clock, and the minute if this worker took it for measuring.

    ``age`` is the maximum silence of a live worker.
    """
    params = {"age": age, "limit": MAX_LIVE, "now": now}
    ((clock, minute),) = db.fetch(using, TAKE_MINUTE, params)
    return clock, minute


def save_depths(minute: int, depths: Sequence[DepthRow], *, using: str = db.DEFAULT_ALIAS) -> None:
    names = ("kinds", "due", "scheduled", "leased", "dead", "late")
    db.execute(using, SAVE_DEPTHS, _columns(names, depths) | {"minute": minute})


def add_counts(
    counts: Sequence[CountsRow], *, now: int | None = None, using: str = db.DEFAULT_ALIAS
) -> None:
    names = ("kinds", "done", "failed", "died", "times", "expired")
    db.execute(using, ADD_COUNTS, _columns(names, counts) | {"now": now})


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def history(
    kinds: Sequence[str], window: Window, *, using: str = db.DEFAULT_ALIAS
) -> dict[tuple[str, int], Sequence[Any]]:
    """Return depths (None if not measured) and counts, by kind and first minute of the step."""
    rows = db.fetch(using, HISTORY, {"kinds": list(kinds), **window._asdict()})
    return {(kind, minute): measured for kind, minute, *measured in rows}


def histograms(kind: str, window: Window, *, using: str = db.DEFAULT_ALIAS) -> Any:
    """Return the first minute of a step, a bucket, and its count."""
    return db.fetch(using, HISTOGRAMS, window._asdict() | {"kind": kind})


def sampled(window: Window, *, using: str = db.DEFAULT_ALIAS) -> dict[int, str | None]:
    """Return the versions of the workers in each step with samples, by its first minute."""
    return dict(db.fetch(using, SAMPLED, window._asdict()))


def last_sampled(
    *, now: int | None = None, using: str = db.DEFAULT_ALIAS
) -> tuple[int, int | None]:
    """Return the current minute, and the last sampled one within a day."""
    ((minute, last),) = db.fetch(using, LAST_SAMPLED, {"now": now})
    return minute, last
