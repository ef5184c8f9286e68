"""The schedules and their ticks: the statements, and the manager that runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.sql import CLOCK, beside, row_of
from delayed_queue.db.statements import execute, fetch
from delayed_queue.queue.store.fragments import TELL_HOLDER

# The columns of a schedule that its installer needs, for the three statements that return them.
_STATE: Final[LiteralString] = """
    "pKind", "keyPrefix", queue, codec, "type", expression, timezone, gap, fold, missed,
    "missedCap", payload::text, "declaredIn", "isEnabled", "configHash", "retiredHashes"::text,
    "lastTick", "installedAt", "scheduleInterval"
"""

# Lock a prefix's row, which is inserted if missing. So installers of one prefix take turns, and
# each sees what the last one committed. The update changes nothing, but also locks a row that
# another transaction has just inserted, where SELECT FOR UPDATE would find none.
# Reads: schedule_kind_prefix.
LOCK_SCHEDULE: Final[LiteralString] = f"""
INSERT INTO delayed_queue_schedule ("pKind", "keyPrefix", queue, codec)
VALUES (%(kind)s, %(key_prefix)s, %(queue)s, %(codec)s)
ON CONFLICT ("pKind", "keyPrefix") DO UPDATE
SET "keyPrefix" = EXCLUDED."keyPrefix"
RETURNING{_STATE}"""

# The clock, and the schedule's row if there is one, without a lock.
# Reads: schedule_kind_prefix.
READ_SCHEDULE: Final[LiteralString] = f"""{CLOCK}
SELECT now,{_STATE}
FROM clock
LEFT JOIN delayed_queue_schedule
    ON "pKind" = %(kind)s
    AND "keyPrefix" = %(key_prefix)s
"""

# All schedules with a definition, by an operator or by code; not those of install_tick(). The
# planner would take "type" <> '' for nearly all rows of a table that was never analyzed.
# Reads: schedule_described.
DESCRIBED_SCHEDULES: Final[LiteralString] = f"""{CLOCK}
SELECT (SELECT now FROM clock),{_STATE}
FROM delayed_queue_schedule
WHERE "type" IN ('cron', 'daily', 'periodic', 'other')
ORDER BY id
"""

# Lock and return the ticks of a prefix, except those that CONSUME has locked. Two-segment keys
# below the prefix are ticks; other keys belong to callers. '0' follows '/', so in the "C"
# collation the range is exactly the keys that start with prefix and slash; LIKE would read the
# prefix as a pattern. The first column is the clock, in at least one row. It is read after all
# rows are locked (they are counted first), so no tick due after it can have been claimed.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
PENDING_TICKS: Final[LiteralString] = """
WITH pending AS MATERIALIZED (
    SELECT id, "pKey" AS key, "lockUuid", "scheduledAt"
    FROM delayed_queue
    WHERE "pKind" = %(kind)s
        AND "pKey" >= %(key_prefix)s::text || '/'
        AND "pKey" < %(key_prefix)s::text || '0'
        AND substr("pKey", length(%(key_prefix)s::text) + 2) ~ '^[^/]+/-?[0-9]{1,19}$'
    ORDER BY "pKey"
    FOR UPDATE SKIP LOCKED
),
clock AS MATERIALIZED (
    SELECT
        COALESCE(
            %(now)s::bigint,
            floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
        ) AS now,
        locked
    FROM (SELECT count(*) AS locked FROM pending) AS counted
)
SELECT
    clock.now,
    pending.id,
    pending.key,
    pending."lockUuid" IS NOT NULL AND pending."scheduledAt" > clock.now
FROM clock
LEFT JOIN pending ON true
"""

# Delete ticks that PENDING_TICKS has locked, and notify their lease holders.
# Reads: the primary key.
DROP_TICKS: Final[LiteralString] = f"""
DELETE FROM delayed_queue AS stored
WHERE id = ANY (%(ids)b::bigint[])
RETURNING {TELL_HOLDER}
"""

# Save the state after an installation, under LOCK_SCHEDULE. Reads: schedule_kind_prefix.
SAVE_SCHEDULE: Final[LiteralString] = """
UPDATE delayed_queue_schedule
SET "configHash" = %(config_hash)s,
    "retiredHashes" = %(retired_hashes)s::jsonb,
    "lastTick" = %(last_tick)s,
    "installedAt" = %(installed_at)s,
    "scheduleInterval" = %(interval)s
WHERE "pKind" = %(kind)s
    AND "keyPrefix" = %(key_prefix)s
"""

# Store the definition that code declares; "isEnabled" belongs to the operators.
# Reads: schedule_kind_prefix.
DESCRIBE_SCHEDULE: Final[LiteralString] = """
UPDATE delayed_queue_schedule
SET queue = %(queue)s,
    codec = %(codec)s,
    "type" = %(type)s,
    expression = %(expression)s,
    timezone = %(timezone)s,
    gap = %(gap)s,
    fold = %(fold)s,
    missed = %(missed)s,
    "missedCap" = %(missed_cap)s,
    "declaredIn" = %(declared_in)s
WHERE "pKind" = %(kind)s
    AND "keyPrefix" = %(key_prefix)s
"""

# Record runs of ticks, and delete all but the last ten of a schedule. A retry updates the run,
# which keeps its first start. With an id, only messages that are still under their lease. The row
# that this statement inserts is not among those it reads.
# Reads: schedule_kind_prefix, schedule_run_planned, the primary key of messages.
RECORD_RUNS: Final[LiteralString] = f"""{CLOCK},
recorded AS (
    INSERT INTO delayed_queue_schedule_run AS stored (
        "scheduleId", key, "plannedAt", "startedAt", "finishedAt", outcome, attempts, worker
    )
    SELECT
        schedule.id, run.key, run.planned, now - run.began, now - run.ended, run.outcome,
        run.attempts, %(worker)s
    FROM unnest(
        %(keys)s::text[], %(prefixes)s::text[], %(planned)s::bigint[], %(began)s::bigint[],
        %(ended)s::bigint[], %(outcomes)s::text[], %(attempts)s::integer[], %(ids)s::bigint[],
        %(leases)s::text[]
    ) AS run (key, prefix, planned, began, ended, outcome, attempts, id, lease)
    JOIN delayed_queue_schedule AS schedule
        ON schedule."pKind" = %(kind)s
        AND schedule."keyPrefix" = run.prefix
        AND schedule."type" <> ''
    CROSS JOIN clock
    WHERE run.id IS NULL
        OR run.lease = (SELECT "lockUuid" FROM delayed_queue WHERE id = run.id)
    ORDER BY run.key
    ON CONFLICT ("scheduleId", key) DO UPDATE
    SET "startedAt" = COALESCE(stored."startedAt", EXCLUDED."startedAt"),
        "finishedAt" = EXCLUDED."finishedAt",
        outcome = EXCLUDED.outcome,
        attempts = EXCLUDED.attempts,
        worker = EXCLUDED.worker
    RETURNING "scheduleId"
),
pruned AS (
    DELETE FROM delayed_queue_schedule_run
    WHERE id = ANY (ARRAY(
        SELECT old.id
        FROM (SELECT DISTINCT "scheduleId" AS id FROM recorded) AS schedule
        CROSS JOIN LATERAL (
            SELECT id
            FROM delayed_queue_schedule_run
            WHERE "scheduleId" = schedule.id
            ORDER BY "plannedAt" DESC, id DESC
            OFFSET 10
            LIMIT 100
            FOR UPDATE SKIP LOCKED
        ) AS old
    ))
)
SELECT count(*)
FROM recorded
"""

M = TypeVar("M", bound=models.Model)


class ScheduleRow(NamedTuple):
    """A schedule: its definition, and the state of its ticks."""

    kind: str
    key_prefix: str
    queue: str
    codec: str
    type: str
    expression: str
    timezone: str
    gap: str
    fold: str
    missed: str
    missed_cap: int
    payload: str | None
    declared_in: str
    is_enabled: bool
    config_hash: str
    retired_hashes: str
    last_tick: int | None
    installed_at: int | None
    interval: int | None


class TickRow(NamedTuple):
    """A tick in the queue, and whether it is leased."""

    id: int
    key: str
    is_leased: bool


class ScheduleManager(models.Manager[M]):
    """The statements of the cron service."""

    def lock(
        self,
        kind: str,
        key_prefix: str,
        *,
        queue: str,
        codec: str,
        using: str = DEFAULT_DB_ALIAS,
    ) -> ScheduleRow:
        """Return the prefix's row, inserted if missing, locked to the end of the transaction."""
        params = {"kind": kind, "key_prefix": key_prefix, "queue": queue, "codec": codec}
        return row_of(ScheduleRow, fetch(using, LOCK_SCHEDULE, params))

    def read(
        self,
        kind: str,
        key_prefix: str,
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> tuple[int, ScheduleRow | None]:
        """Return the clock and the prefix's row, if there is one."""
        params = {"kind": kind, "key_prefix": key_prefix, "now": now}
        (found,) = beside(ScheduleRow, fetch(using, READ_SCHEDULE, params))
        return found

    def described(
        self, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> list[tuple[int, ScheduleRow]]:
        """Return all schedules with a definition, each with the clock."""
        found = beside(ScheduleRow, fetch(using, DESCRIBED_SCHEDULES, {"now": now}))
        return [(clock, row) for clock, row in found if row is not None]

    def pending_ticks(
        self,
        kind: str,
        key_prefix: str,
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> tuple[int, list[TickRow]]:
        """Return the clock and the prefix's ticks, locked, except those being consumed."""
        params = {"kind": kind, "key_prefix": key_prefix, "now": now}
        found = beside(TickRow, fetch(using, PENDING_TICKS, params))
        clock = max(clock for clock, _ in found)  # the same in each row
        return clock, [tick for _, tick in found if tick is not None]

    def drop_ticks(self, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS) -> int:
        """Delete ticks that the transaction has locked; return their number."""
        return execute(using, DROP_TICKS, {"ids": list(ids)})

    def save(self, row: ScheduleRow, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Save the state of a schedule whose row the transaction has locked."""
        execute(using, SAVE_SCHEDULE, row._asdict())

    def describe(self, row: ScheduleRow, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Save the definition of a declared schedule; its row must exist."""
        execute(using, DESCRIBE_SCHEDULE, row._asdict())
