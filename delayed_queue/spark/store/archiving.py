"""Statements of archives: manifests, rows that are read and deleted; and of reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, LiteralString

from delayed_queue.db.sql import CLOCK

# Let one process archive a table, until its transaction ends; false if another one does. Without a
# timeout of its own, and with a dead client found within a minute.
LOCK_ARCHIVES: Final[LiteralString] = """
SELECT
    pg_try_advisory_xact_lock(hashtextextended(%(source)s::text, 5063919422760113)),
    set_config('idle_in_transaction_session_timeout', '0', true),
    set_config('tcp_keepalives_idle', '30', true),
    set_config('tcp_keepalives_interval', '10', true),
    set_config('tcp_keepalives_count', '3', true)
"""

# Plan an archive. An unfinished one of the same table blocks it, so no two archive one row. No row
# is returned then.
# Reads: archive_unfinished.
PLAN_ARCHIVE: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_archive (source, path, "createdAt")
SELECT %(source)s, %(path)s, now
FROM clock
ON CONFLICT (source) WHERE state <> 'pruned' DO NOTHING
RETURNING id
"""
)

# The unfinished archive of a table.
# Reads: archive_unfinished.
UNFINISHED_ARCHIVE: Final[LiteralString] = """
SELECT id, path, state, files::text
FROM delayed_queue_archive
WHERE source = %(source)s
    AND state <> 'pruned'
"""

# The next state, from the one before: a process whose archive another one has finished changes
# nothing.
# Reads: the primary key.
ADVANCE_ARCHIVE: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue_archive
SET state = %(to)s,
    files = COALESCE(%(files)s::jsonb, files),
    rows = COALESCE(%(rows)s::bigint, rows),
    deleted = COALESCE(%(deleted)s::bigint, deleted),
    changed = COALESCE(%(changed)s::bigint, changed),
    "finishedAt" = CASE WHEN %(to)s::text = 'pruned' THEN (SELECT now FROM clock) END
WHERE id = %(id)s
    AND state = %(state)s
RETURNING id
"""
)

# Drop an archive whose files were not all written and checked; its rows are all in the table.
# Reads: the primary key.
DROP_ARCHIVE: Final[LiteralString] = """
DELETE FROM delayed_queue_archive
WHERE id = %(id)s
    AND state = 'planned'
RETURNING id
"""


@dataclass(frozen=True, slots=True)
class Template:
    """A statement over one of several tables; its names are filled in, quoted."""

    text: LiteralString


# The number of rows that are old enough.
COUNT_OLD: Final = Template("""
SELECT count(*)
FROM {table}
WHERE {age} < {cutoff}
    AND {only}
""")

# Keys that end shares of the rows that are old enough, found in a sample of pages. A partitioned
# table has no pages itself, so all its rows are sampled.
SAMPLED_KEYS: Final = Template("""
SELECT (percentile_disc(%(shares)s::float8[]) WITHIN GROUP (ORDER BY id))::text[]
FROM {table}
TABLESAMPLE SYSTEM (LEAST(100, 100.0 * 8192 * %(pages)s::bigint / GREATEST(
    pg_relation_size(to_regclass(quote_ident(%(table)s))), 1
)))
WHERE {age} < {cutoff}
    AND {only}
""")

# A range of them, each row with a digest of all its columns.
READ_OLD: Final = Template("""
SELECT {columns}, md5(archived_row::text)
FROM {table} AS archived_row
WHERE {within}
    AND {age} < {cutoff}
    AND {only}
ORDER BY id
""")

# Delete archived rows that are still as they were archived. A row that was changed since stays, and
# is archived again. Only keys of the files are deleted, because a range could hold a row that was
# committed after the read.
DELETE_ARCHIVED: Final = Template("""
DELETE FROM {table} AS archived_row
USING unnest(%(keys)s::text[], %(digests)s::text[]) AS archived (key, digest)
WHERE archived_row.id = archived.key::{type}
    AND md5(archived_row::text) = archived.digest
""")

# The number of them that are still in the table.
COUNT_KEPT: Final = Template("""
SELECT count(*)
FROM {table}
WHERE id = ANY (%(keys)s::text[]::{type}[])
""")

# The columns of a table, in its order, with their types.
COLUMNS: Final = Template("""
SELECT attname, format_type(atttypid, NULL)
FROM pg_catalog.pg_attribute
WHERE attrelid = to_regclass(quote_ident(%(table)s))
    AND attnum > 0
    AND NOT attisdropped
ORDER BY attnum
""")

# Make the text of a row, and so its digest, independent of the settings of the session.
STEADY_TEXT: Final[Template] = Template("""
SELECT
    set_config('TimeZone', 'UTC', false),
    set_config('DateStyle', 'ISO, YMD', false),
    set_config('IntervalStyle', 'postgres', false),
    set_config('bytea_output', 'hex', false),
    set_config('extra_float_digits', '1', false)
""")

# The tables that the pipeline needs, and whether each exists.
PRESENT: Final[Template] = Template("""
SELECT name, to_regclass(name) IS NOT NULL
FROM unnest(ARRAY[
    'delayed_queue', 'delayed_queue_dead_letter', 'delayed_queue_offer_ledger',
    'delayed_queue_archive', 'delayed_queue_report'
]) AS needed (name)
""")

# The name of this transaction's snapshot, for other connections while it lasts.
EXPORT_SNAPSHOT: Final[Template] = Template("SELECT pg_export_snapshot()")


# Save a report and its plots in place of the last one. Reads: the primary key.
SAVE_REPORT: Final[LiteralString] = (
    CLOCK
    + """,
last AS (
    DELETE FROM delayed_queue_report
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM delayed_queue_report
        ORDER BY id
        LIMIT 100
    ))
)
INSERT INTO delayed_queue_report ("createdAt", figures, plots)
SELECT now, %(figures)s::jsonb, %(plots)s::jsonb
FROM clock
RETURNING id
"""
)
