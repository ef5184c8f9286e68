"""Shared by all stores: common statements, their planning, named rows, pages.

It imports neither Django nor a driver.
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

# Milliseconds since the epoch, floored. An uncorrelated sub-select of it is an InitPlan, so it is
# evaluated once per statement.
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

# Wake the listeners of the channel when the transaction commits.
NOTIFY: Final[LiteralString] = "SELECT pg_notify(%(channel)s, '')"

# True if the transactions of this session are read-only, as on a standby. Reads: no table.
IS_READ_ONLY: Final[LiteralString] = """
SELECT current_setting('transaction_read_only')::boolean
"""

# The clock, and whether a session of a lost try still exists. It ends with its statement, when the
# server notices that the client has gone. A session that began after the loss has reused the
# number.
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

# Try to be the only keeper of a table's partitions until the transaction ends, and read the clock.
# The transaction waits at most a second for a lock.
TAKE_KEEPING: Final[LiteralString] = """
SELECT
    pg_try_advisory_xact_lock(hashtextextended(%(table)s::text, 7310600482201521)),
    COALESCE(
        %(now)s::bigint,
        floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint
    ),
    set_config('lock_timeout', '1s', true)
"""

# The partitions of days, as numbers. Reads: the catalogue.
DAYS: Final[LiteralString] = """
SELECT substring(partition.relname FROM '_([0-9]+)$')::integer
FROM pg_inherits
JOIN pg_class AS partition ON partition.oid = pg_inherits.inhrelid
WHERE pg_inherits.inhparent = %(table)s::regclass
    AND partition.relname ~ '_[0-9]+$'
"""

# Rights that a worker needs and the role lacks, one row for each existing table and right. OWNER:
# the role may not create partitions, and the one for tomorrow is missing. Reads: the catalogue.
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
    FROM (
        VALUES (to_regclass('delayed_queue_id_seq')::oid),
            (to_regclass('delayed_queue_batch_id_seq')::oid)
    ) AS drawn_from (oid)
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

# Statements that have only one plan, which may be kept on every connection. PostgreSQL may keep the
# plan of a prepared statement after five executions, and one that was made on an empty table may
# scan it when it has grown. So other statements are prepared again by then, unless the planner is
# set to use indexes.
ONE_PLAN: Final[set[str]] = {NOTIFY}
# Statements that set the planner like that until the end of their transaction.
KEPT_BEHIND: Final[set[str]] = set()


@dataclass(frozen=True, slots=True)
class Page(Generic[T, C]):
    """A page of a list, and the key of the next page; None after the last."""

    items: Sequence[T]
    next: C | None = None


def page_of(rows: Sequence[T], limit: int, key: Callable[[T], C]) -> Page[T, C]:
    """Return a page of ``limit`` rows; one more row shows that there is a next page."""
    items = rows[:limit]
    return Page(items, key(items[-1]) if len(rows) > limit else None)


def rows_of(named: type[N], answer: Sequence[Sequence[Any]]) -> list[N]:
    """Return the rows by name; raises TypeError when the first has other columns."""
    if answer:
        named._make(answer[0])
    return list(map(partial(tuple.__new__, named), answer))


def row_of(named: type[N], answer: Sequence[Sequence[Any]]) -> N:
    """Return the only row."""
    (row,) = answer
    return named._make(row)


def first_row(named: type[N], answer: Sequence[Sequence[Any]]) -> N | None:
    """Return the first row, or None when there is none."""
    return named._make(answer[0]) if answer else None


def column_of(answer: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the values of the first column."""
    return [row[0] for row in answer]


def value_of(answer: Sequence[Sequence[Any]]) -> Any:
    """Return the first value of the first row, or None when there is no row."""
    return answer[0][0] if answer else None


def array_of(values: list[T]) -> list[T] | None:
    """Return the array for a column of unnest(), or None if all values are: it yields NULLs."""
    return None if values.count(None) == len(values) else values  # type: ignore[arg-type]


def beside(named: type[N], answer: Iterable[Sequence[Any]]) -> list[tuple[Any, N | None]]:
    """Return each row's first value and the rest by name; None where an outer join has no row."""
    return [(first, None if rest[0] is None else named._make(rest)) for first, *rest in answer]
