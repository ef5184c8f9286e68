"""Manifests of archives, reports, and what is read and deleted of the archived tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, LiteralString

from delayed_queue.db.sql import CLOCK

# Begin an archive of the next stretch of a table. One that is unfinished blocks it: no row is
# ever archived by two at once. No row is returned then.
# Reads: archive_unfinished.
PLAN_ARCHIVE: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_archive (
    source, "keyColumn", "ageColumn", lower, upper, "only", cutoff, expected, destination,
    "createdAt", holder, "heldUntil"
)
SELECT
    %(source)s, %(key)s, %(age)s, %(lower)s, %(upper)s, %(only)s::jsonb, %(cutoff)s::bigint,
    %(expected)s::bigint, %(destination)s, now, %(holder)s, now + %(lease)s::bigint
FROM clock
ON CONFLICT (source) WHERE state <> 'pruned' DO NOTHING
RETURNING id
"""
)

# The archive of a table that is not finished, and for how long its holder may still be at work.
# Reads: archive_unfinished.
UNFINISHED_ARCHIVE: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    id, source, "keyColumn", "ageColumn", lower, upper, "only"::text, cutoff, expected, destination,
    state, staging, rows, holder, "heldUntil" - (SELECT now FROM clock)
FROM delayed_queue_archive
WHERE source = %(source)s
    AND state <> 'pruned'
"""
)

# Take an archive over from a holder that is dead or silent, or stay its holder. The lock is one
# that COUNT_BATCH waits for: what is deleted in another's name is committed before, or not at all.
# Reads: the primary key.
HOLD_ARCHIVE: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue_archive
SET holder = %(holder)s,
    "heldUntil" = (SELECT now FROM clock) + %(lease)s::bigint
WHERE id = (
    SELECT id
    FROM delayed_queue_archive
    WHERE id = %(id)s
        AND state <> 'pruned'
        AND (holder IN (%(holder)s, %(dead)s) OR "heldUntil" <= (SELECT now FROM clock))
    FOR UPDATE
)
RETURNING id
"""
)

# One step on, or back, by the holder alone: who lost the archive meanwhile changes nothing.
# Reads: the primary key.
ADVANCE_ARCHIVE: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue_archive
SET state = %(to)s,
    staging = COALESCE(%(staging)s::text, staging),
    rows = COALESCE(%(rows)s::bigint, rows),
    deleted = COALESCE(%(deleted)s::bigint, deleted),
    changed = COALESCE(%(changed)s::bigint, changed),
    "finishedAt" = CASE WHEN %(to)s::text = 'pruned' THEN (SELECT now FROM clock) END
WHERE id = %(id)s
    AND holder = %(holder)s
    AND state = %(state)s
RETURNING id
"""
)

# What was read back from the files, instead of what is known of those of an earlier try; in the
# transaction of the step to "staged".
# Reads: archive_file_name.
NOTE_FILES: Final[LiteralString] = """
WITH outdated AS (
    DELETE FROM delayed_queue_archive_file
    WHERE "archiveId" = %(id)s
        AND NOT name = ANY (%(names)s::text[])
)
INSERT INTO delayed_queue_archive_file ("archiveId", name, size, rows, checksum)
SELECT %(id)s, name, size, rows, checksum
FROM unnest(
    %(names)s::text[], %(sizes)s::bigint[], %(rows)s::bigint[], %(checksums)s::bigint[]
) AS file (name, size, rows, checksum)
ON CONFLICT ("archiveId", name) DO NOTHING
"""

# The files of an archive, and what became of their rows.
# Reads: archive_file_name.
FILES_OF: Final[LiteralString] = """
SELECT name, size, rows - position, deleted, changed
FROM delayed_queue_archive_file
WHERE "archiveId" = %(id)s
"""

# What a file must be, how many of its rows are done, and whether the archive is the holder's.
# Reads: archive_file_name, the primary key.
FILE_TO_PRUNE: Final[LiteralString] = """
SELECT
    file.rows, file.checksum, file.position,
    archive.holder = %(holder)s AND archive.state = 'published'
FROM delayed_queue_archive_file AS file
JOIN delayed_queue_archive AS archive ON archive.id = file."archiveId"
WHERE file."archiveId" = %(id)s
    AND file.name = %(name)s
"""

# Count a batch, last in the transaction that deletes it; no row means that the archive was lost,
# or that a twin of the task has counted it, and the deletion must be rolled back. Batches share
# the lock of the manifest with each other, but not with HOLD_ARCHIVE.
# Reads: archive_file_name, the primary key.
COUNT_BATCH: Final[LiteralString] = """
WITH held AS (
    SELECT id
    FROM delayed_queue_archive
    WHERE id = %(id)s
        AND holder = %(holder)s
        AND state = 'published'
    FOR KEY SHARE
)
UPDATE delayed_queue_archive_file AS file
SET position = %(to)s::bigint,
    deleted = deleted + %(deleted)s::bigint,
    changed = changed + %(changed)s::bigint
FROM held
WHERE file."archiveId" = held.id
    AND file.name = %(name)s
    AND file.position = %(from)s::bigint
RETURNING file.position
"""


@dataclass(frozen=True, slots=True)
class Template:
    """A statement over a table of the operator's choice; its names are filled in, quoted."""

    text: LiteralString


# Keys that part the rows that are old enough into parts of about as many, found in a sample of so
# many pages, and how many rows those stand for. Of a table in partitions, which has no pages
# itself, all rows are looked at.
SAMPLED_KEYS: Final = Template("""
SELECT key::text, rows
FROM (
    SELECT
        {key} AS key,
        row_number() OVER (ORDER BY {key}) AS place,
        count(*) OVER () AS total,
        (count(*) OVER () * GREATEST(
            1, pg_relation_size(to_regclass(quote_ident(%(table)s))) / 8192.0 / %(pages)s::bigint
        ))::bigint AS rows
    FROM {table}
    TABLESAMPLE SYSTEM (LEAST(100, 100.0 * 8192 * %(pages)s::bigint / GREATEST(
        pg_relation_size(to_regclass(quote_ident(%(table)s))), 1
    )))
    WHERE {within}
        AND {age} < {cutoff}
        AND {only}
) AS sampled
WHERE place < total
    AND place * %(parts)s::bigint / total > (place - 1) * %(parts)s::bigint / total
ORDER BY place
""")

# Where to cut rows that are old enough into pieces, by key: the first key, the key a piece of rows
# after it, and so on, and the last of all, whose place is how many there are. The primary key is
# walked along, from piece to piece, which keeps no row and numbers none but those of the last
# piece; behind that it is read to its end.
BOUNDS: Final = Template("""
WITH RECURSIVE cuts (key, place) AS (
    (
        SELECT {key}, 1::bigint
        FROM {table}
        WHERE {within}
            AND {age} < {cutoff}
            AND {only}
        ORDER BY {key}
        LIMIT 1
    )
    UNION ALL
    SELECT following.key, cuts.place + %(piece)s::bigint
    FROM cuts
    CROSS JOIN LATERAL (
        SELECT {key} AS key
        FROM {table}
        WHERE {key} > cuts.key AND {within} AND {age} < {cutoff} AND {only}
        ORDER BY {key}
        OFFSET %(piece)s::bigint - 1
        LIMIT 1
    ) AS following
),
remaining AS (
    SELECT following.key, cuts.place + row_number() OVER (ORDER BY following.key) AS place
    FROM (SELECT key, place FROM cuts ORDER BY place DESC LIMIT 1) AS cuts
    CROSS JOIN LATERAL (
        SELECT {key} AS key
        FROM {table}
        WHERE {key} > cuts.key AND {within} AND {age} < {cutoff} AND {only}
        ORDER BY {key}
        LIMIT %(piece)s::bigint - 1
    ) AS following
)
SELECT key::text, place
FROM (
    SELECT key, place FROM cuts
    UNION ALL
    (SELECT key, place FROM remaining ORDER BY place DESC LIMIT 1)
) AS bounds
ORDER BY place
""")

# A piece of them, each row with a digest of all that it holds.
READ_PIECE: Final = Template("""
SELECT {columns}, md5(archived_row::text)
FROM {table} AS archived_row
WHERE {within}
    AND {age} < {cutoff}
    AND {only}
ORDER BY {key}
""")

# The first of a range that has an infinite timestamp or date, of which Parquet has none.
FIRST_INFINITE: Final = Template("""
SELECT {key}::text
FROM {table}
WHERE {within}
    AND {age} < {cutoff}
    AND {only}
    AND NOT ({finite})
ORDER BY {key}
LIMIT 1
""")

# How many rows a range has.
COUNT_RANGE: Final = Template("""
SELECT count(*)
FROM {table}
WHERE {within}
    AND {age} < {cutoff}
    AND {only}
""")

# Delete archived rows that are still as they were archived; one that was changed since stays, and
# is archived the next time. By key, so nothing is deleted that is not in the file: a range could
# hold a row that was committed after it was read.
DELETE_ARCHIVED: Final = Template("""
DELETE FROM {table} AS archived_row
USING unnest(%(keys)s::text[], %(digests)s::text[]) AS archived (key, digest)
WHERE archived_row.{key} = archived.key::{type}
    AND md5(archived_row::text) = archived.digest
""")

# How many of them are still there.
COUNT_KEPT: Final = Template("""
SELECT count(*)
FROM {table}
WHERE {key} = ANY (%(keys)s::text[]::{type}[])
""")

# The columns of a table, in its order, and whether one is the primary key.
COLUMNS: Final = Template("""
SELECT
    attribute.attname,
    format_type(attribute.atttypid, NULL),
    EXISTS (
        SELECT 1
        FROM pg_catalog.pg_index AS index
        WHERE index.indrelid = attribute.attrelid
            AND index.indisprimary
            AND index.indnkeyatts = 1
            AND attribute.attnum = index.indkey[0]
    )
FROM pg_catalog.pg_attribute AS attribute
WHERE attribute.attrelid = to_regclass(quote_ident(%(table)s))
    AND attribute.attnum > 0
    AND NOT attribute.attisdropped
ORDER BY attribute.attnum
""")

# That the text of a row, and so its digest, depends on nothing that a session may set.
STEADY_TEXT: Final[Template] = Template("""
SELECT
    set_config('TimeZone', 'UTC', false),
    set_config('DateStyle', 'ISO, YMD', false),
    set_config('IntervalStyle', 'postgres', false),
    set_config('bytea_output', 'hex', false),
    set_config('extra_float_digits', '1', false)
""")

# How many messages there are, of a kind or of all: by this a snapshot's files are checked.
COUNT_MESSAGES: Final[Template] = Template("""
SELECT count(*)
FROM delayed_queue
WHERE %(kind)s::text IS NULL
    OR "pKind" = %(kind)s
""")

# Which of the tables that the pipeline needs are there.
PRESENT: Final[Template] = Template("""
SELECT name, to_regclass(name) IS NOT NULL
FROM unnest(ARRAY[
    'delayed_queue', 'delayed_queue_dead_letter', 'delayed_queue_offer_ledger',
    'delayed_queue_archive', 'delayed_queue_report'
]) AS needed (name)
""")

# The name of this transaction's snapshot, by which others see what it sees while it lasts.
EXPORT_SNAPSHOT: Final[Template] = Template("SELECT pg_export_snapshot()")


# Keep a report and its plots, and drop all but the newest few before it, a hundred at most.
# Reads: the primary key.
SAVE_REPORT: Final[LiteralString] = (
    CLOCK
    + """,
outdated AS (
    DELETE FROM delayed_queue_report
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM delayed_queue_report
        ORDER BY id DESC
        OFFSET %(keep)s::integer - 1
        LIMIT 100
    ))
)
INSERT INTO delayed_queue_report ("createdAt", figures, plots)
SELECT now, %(figures)s::jsonb, %(plots)s::jsonb
FROM clock
RETURNING id
"""
)
