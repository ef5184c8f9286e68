"""The rows that the pipeline's statements are planned over."""

from __future__ import annotations

from typing import Final

# Two thousand jobs of nine chunks and a closing row each, a minute apart.
LEDGER: Final = """
INSERT INTO delayed_queue_offer_ledger (
    job, batch, "partition", chunk, digest, "rows", created, updated, "recordedAt"
)
SELECT
    'job-' || n / 10, 0, n %% 10 - 1, 0, md5(n::text), 1000, 900, 50, %(now)s - n / 10 * 60000
FROM (SELECT i * 7919::bigint %% 20000 AS n FROM generate_series(1, 20000) AS i) AS scrambled
"""
# Twenty jobs of a thousand rows, each by two attempts of which one counts; half of the keys are
# in the queue. Then the session's own table for one chunk.
STAGE: Final = """
INSERT INTO delayed_queue_offer_stage (
    job, attempt, "partition", "position", key, payload, "dueAt", "recordedAt"
)
SELECT
    'job-' || n / 1000, 'attempt-' || n / 500, n %% 2, n,
    CASE WHEN n %% 4 < 2 THEN 'key-' ELSE 'new-' END || n, 'y', %(now)s, %(now)s - n / 1000 * 60000
FROM (SELECT i * 7919::bigint %% 20000 AS n FROM generate_series(1, 20000) AS i) AS scrambled
"""
OFFERED: Final = """
INSERT INTO pg_temp.delayed_queue_offered (turn, key, payload, due_at)
SELECT 0, CASE WHEN n %% 2 = 0 THEN 'key-' ELSE 'new-' END || n * 97, 'y', %(now)s
FROM generate_series(1, 1000) AS n
"""


# Archives that are done, and one of each table that is not; reports, far more than are kept.
ARCHIVES: Final = """
INSERT INTO delayed_queue_archive (source, path, state, holder, "heldUntil", "createdAt")
SELECT
    'table-' || n / 100, 'lake',
    CASE WHEN n %% 100 = 0 THEN 'written' ELSE 'pruned' END, 'host:1:x', 0, 0
FROM generate_series(1, 5000) AS n
"""
# Of those that are written a hundred files each, as of those that are done.
FILES: Final = """
INSERT INTO delayed_queue_archive_file ("archiveId", name, size, rows, checksum)
SELECT 2000 + n / 100 * 100, 'part-' || n %% 100, 1, 1000, n
FROM generate_series(1, 10000) AS n
"""
REPORTS: Final = """
INSERT INTO delayed_queue_report ("createdAt", figures, plots)
SELECT 0, '{}', '{}'
FROM generate_series(1, 5000)
"""
