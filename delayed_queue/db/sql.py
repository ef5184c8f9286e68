"""The few statements that every room shares."""

from __future__ import annotations

from typing import Final, LiteralString

# Milliseconds since the epoch, floored; evaluated once per statement wherever it is used as
# an uncorrelated sub-select (PostgreSQL makes an InitPlan of it).
CLOCK: Final[LiteralString] = """
WITH clock AS MATERIALIZED (
    SELECT COALESCE(
        %(now)s::bigint,
        floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint
    ) AS now
)"""

# Wake those who listen on the channel, when the transaction commits.
NOTIFY: Final[LiteralString] = "SELECT pg_notify(%(channel)s, '')"

# Whether this session's transactions only read: on a standby, and where the default says so.
# A constant, in one round trip. Reads: no table.
IS_READ_ONLY: Final[LiteralString] = """
SELECT current_setting('transaction_read_only')::boolean
"""

# The clock, and whether a session that a try was sent over is still there. It goes by itself: at
# the end of its statement the server finds that nobody listens. A session that began after the
# loss is another one, which got the number of one that has ended.
# Reads: no table; the list of sessions.
LOST_SESSIONS: Final[LiteralString] = """
SELECT
    floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint,
    EXISTS (
        SELECT 1
        FROM pg_stat_activity
        WHERE pid = ANY (%(pids)b::integer[])
            AND pid <> pg_backend_pid()
            AND backend_start < statement_timestamp() - make_interval(secs => %(seconds)s)
    )
"""

# Statements with only one plan. PostgreSQL keeps the plan of a prepared statement after five
# executions, and one that was made while the table was small reads it from end to end when it
# has grown, until the next ANALYZE. All others are prepared only where it plans each time.
ONE_PLAN: Final[set[str]] = {NOTIFY}
