"""What every store needs: statements that all share, how they are planned, rows by name, pages.

Free of Django and of any driver: whoever sends a statement can read its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, LiteralString, NamedTuple, TypeVar

Row = tuple[Any, ...]
# A statement and its parameters.
Step = tuple[str, dict[str, Any]]
N = TypeVar("N", bound=NamedTuple)
T = TypeVar("T")
C = TypeVar("C")

# Milliseconds since the epoch, floored; evaluated once per statement wherever it is used as
# an uncorrelated sub-select (PostgreSQL makes an InitPlan of it).
CLOCK: Final[LiteralString] = """
WITH clock AS MATERIALIZED (
    SELECT COALESCE(
        %(now)s::bigint,
        floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint
    ) AS now
)"""

# The database's clock, in milliseconds since the epoch. Reads: no table.
NOW: Final[LiteralString] = """
SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint
"""

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

# Try to be the only keeper of a table's partitions until the transaction ends, and read the clock
# by which days are made and dropped. The transaction gives way to any lock on a partition.
TAKE_KEEPING: Final[LiteralString] = """
SELECT
    pg_try_advisory_xact_lock(hashtextextended(%(table)s::text, 7310600482201521)),
    COALESCE(
        %(now)s::bigint,
        floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint
    ),
    set_config('lock_timeout', '1s', true)
"""

# The partitions of days. Reads: the catalogue.
DAYS: Final[LiteralString] = """
SELECT substring(partition.relname FROM '_([0-9]+)$')::integer
FROM pg_inherits
JOIN pg_class AS partition ON partition.oid = pg_inherits.inhrelid
WHERE pg_inherits.inhparent = %(table)s::regclass
    AND partition.relname ~ '_[0-9]+$'
"""

# The rights of a worker that the role lacks on the tables: one row for each table and right.
# OWNER: the role may not make the partitions of days, and the one for tomorrow is missing.
# Tables that do not exist are skipped. Reads: the catalogue.
MISSING_RIGHTS: Final[LiteralString] = """
WITH ours AS MATERIALIZED (
    SELECT relation.oid, relation.relowner, relation.relnamespace, days.partdefid
    FROM unnest(%(tables)s::text[]) AS named (name)
    JOIN pg_class AS relation ON relation.oid = to_regclass(named.name)
    LEFT JOIN pg_partitioned_table AS days ON days.partrelid = relation.oid
),
lacking AS (
    SELECT stored.oid, needed.privilege
    FROM (SELECT oid FROM ours UNION ALL SELECT partdefid FROM ours WHERE partdefid > 0) AS stored
    CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed (privilege)
    WHERE NOT has_table_privilege(stored.oid, needed.privilege)
    UNION ALL
    SELECT oid, 'USAGE'
    FROM (SELECT to_regclass('delayed_queue_id_seq')::oid AS oid) AS named_by_offers
    WHERE NOT has_sequence_privilege(oid, 'USAGE')
    UNION ALL
    SELECT oid, 'OWNER'
    FROM ours
    WHERE partdefid > 0
        AND NOT (
            pg_has_role(relowner, 'USAGE')
            AND has_schema_privilege(relnamespace, 'CREATE')
        )
        AND to_regclass(
            oid::regclass || to_char(
                (statement_timestamp() + interval '1 day') AT TIME ZONE 'UTC', '"_"YYYYMMDD'
            )
        ) IS NULL
)
SELECT current_user::text, oid::regclass::text, privilege
FROM lacking
ORDER BY 2, 3
"""

# Statements that have only one plan, so that it may be kept on every connection. PostgreSQL may
# keep the plan of a prepared statement after five executions. A plan that was made on an empty
# table may read it from end to end when it has grown, until the next ANALYZE. So all other
# statements are prepared anew by then, unless the planner is set to keep plans by an index.
ONE_PLAN: Final[set[str]] = {NOTIFY}
# Statements that set the planner so until the end of their transaction.
KEPT_BEHIND: Final[set[str]] = set()


@dataclass(frozen=True, slots=True)
class Page(Generic[T, C]):
    """A page of a list, and the key to go on from; None after the last."""

    items: Sequence[T]
    next: C | None = None


def page_of(rows: Sequence[T], limit: int, key: Callable[[T], C]) -> Page[T, C]:
    """Return a page of so many rows, of which one more was asked for: it tells of a next page."""
    items = rows[:limit]
    return Page(items, key(items[-1]) if len(rows) > limit else None)


def rows_of(named: type[N], answer: Sequence[Sequence[Any]]) -> list[N]:
    """Return the rows by name; raises TypeError when they have another number of columns.

    All rows of an answer have as many, so it is asked of the first alone.
    """
    if answer:
        named._make(answer[0])
    return list(map(partial(tuple.__new__, named), answer))


def row_of(named: type[N], answer: Sequence[Sequence[Any]]) -> N:
    """Return the row of an answer that has exactly one."""
    (row,) = answer
    return named._make(row)


def first_row(named: type[N], answer: Sequence[Sequence[Any]]) -> N | None:
    """Return the first row, or None when there is none."""
    return named._make(answer[0]) if answer else None


def column_of(answer: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the values of an answer of one column, or of the first of several."""
    return [row[0] for row in answer]


def value_of(answer: Sequence[Sequence[Any]]) -> Any:
    """Return the value of an answer of one row and column, or None when there is no row."""
    return answer[0][0] if answer else None


def array_of(values: list[T]) -> list[T] | None:
    """Return the array to pass for a column of unnest(); of nothing but NULLs none.

    unnest() has NULLs where an array ends before the others, and one of a thousand is written,
    read and walked through for nothing.
    """
    return None if values.count(None) == len(values) else values  # type: ignore[arg-type]


def beside(named: type[N], answer: Iterable[Sequence[Any]]) -> list[tuple[Any, N | None]]:
    """Return each row's first value and the rest by name: None where an outer join has no row."""
    return [(first, None if rest[0] is None else named._make(rest)) for first, *rest in answer]
