"""Who keeps deleted messages from being cleaned away."""

from __future__ import annotations

from typing import Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.rows import row_of

# The oldest of what VACUUM must keep rows for in this database: snapshots and transactions of its
# sessions, prepared transactions, and, of the whole server, standbys that give feedback, with or
# without a slot. What is too young to tell is left out by the caller. Without the role
# A VACUUM shows a snapshot and holds up nobody. Without the role
# pg_read_all_stats the sessions of others show no snapshot; "hidden" counts them.
# Reads: no table of ours; the lists of sessions, prepared transactions and slots.
OLDEST_SNAPSHOT: Final[LiteralString] = """
WITH sessions AS MATERIALIZED (
    SELECT
        CASE backend_type WHEN 'walsender' THEN 'standby' ELSE 'session' END AS holder,
        pid::text AS name,
        COALESCE(application_name, '') AS application,
        COALESCE(usename, '')::text AS owner,
        state,
        extract(epoch FROM statement_timestamp() - xact_start)::float8 AS seconds,
        GREATEST(age(backend_xmin), age(backend_xid)) AS transactions
    FROM pg_stat_activity AS activity
    WHERE (
        (backend_type = 'client backend' AND datname = current_database())
        OR backend_type = 'walsender'
    )
        AND pid <> pg_backend_pid()
        AND NOT EXISTS (
            SELECT 1
            FROM pg_stat_progress_vacuum AS vacuum
            WHERE vacuum.pid = activity.pid
        )
),
holders AS (
    SELECT holder, name, application, owner, COALESCE(state, '') AS state, seconds, transactions
    FROM sessions
    WHERE transactions IS NOT NULL
    UNION ALL
    SELECT
        'prepared transaction', gid, '', owner::text, '',
        extract(epoch FROM statement_timestamp() - prepared)::float8, age(transaction)
    FROM pg_prepared_xacts
    WHERE database = current_database()
    UNION ALL
    SELECT
        'replication slot', slot_name::text, '', '',
        CASE WHEN active THEN 'active' ELSE 'inactive' END, NULL, age(xmin)
    FROM pg_replication_slots
    WHERE xmin IS NOT NULL
)
SELECT
    oldest.holder, oldest.name, oldest.application, oldest.owner, oldest.state, oldest.seconds,
    oldest.transactions,
    pg_stat_get_dead_tuples('delayed_queue'::regclass),
    (SELECT count(*) FROM sessions WHERE holder = 'session' AND state IS NULL)
FROM (SELECT 1) AS always
LEFT JOIN (
    SELECT holder, name, application, owner, state, seconds, transactions
    FROM holders
    ORDER BY transactions DESC, seconds DESC NULLS LAST
    LIMIT 1
) AS oldest ON true
"""


class SnapshotRow(NamedTuple):
    """The oldest holder, if any, how many rows are dead, and how many sessions cannot be seen."""

    holder: str | None
    name: str
    application: str
    owner: str
    state: str
    seconds: float | None
    transactions: int
    dead_rows: int
    hidden: int


def oldest_snapshot_row(*, using: str = db.DEFAULT_ALIAS) -> SnapshotRow:
    return row_of(SnapshotRow, db.fetch(using, OLDEST_SNAPSHOT, {}))
