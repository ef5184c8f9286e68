"""Every statement at 200,000 rows: its index, rows and pages, and the cost of groups (G7, G8)."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import psycopg
import pytest

from delayed_queue.queue.dealing import candidate
from delayed_queue.queue.group_claims import MOST_GROUPS
from delayed_queue.queue.store.claim import CLAIM, CONSUME, NO_FLOOR
from delayed_queue.queue.store.groups import GROUPS_AHEAD, LEASE_GROUPS, GroupRow
from tests.plans.batch_cases import BATCH_CASES
from tests.plans.case import DEAD_PRIMARY, LEASE, Case, lease_ids
from tests.plans.dead_letter_cases import DEAD_LETTER_CASES
from tests.plans.explain import Plan, explain
from tests.plans.http_cases import HTTP_CASES
from tests.plans.queue_cases import QUEUE_CASES
from tests.plans.rows import NOW, scrambled
from tests.plans.spark_cases import SPARK_CASES
from tests.plans.task_cases import TASK_CASES
from tests.support.statements import STATEMENTS, sql

# The tests use their own connection; the mark creates the test database.
pytestmark = pytest.mark.django_db

CASES: Final = [
    *QUEUE_CASES, *BATCH_CASES, *DEAD_LETTER_CASES, *HTTP_CASES, *TASK_CASES, *SPARK_CASES,
]  # fmt: skip

# Two machines, as planner settings. COLD is a table much larger than the cache, on a disk that
# seeks: there PostgreSQL avoids indexes unless it expects few rows.
WARM: Final = {"effective_cache_size": "4GB"}
COLD: Final = {"effective_cache_size": "8kB", "random_page_cost": "8"}

# Above this estimate PostgreSQL compiles each plan, which takes seconds.
COMPILED: Final = 100_000
# Estimated above it on tables without statistics.
DEAR: Final = {"COUNT_KIND", "FIND_RESULT", "REDRIVE"}

# They walk an index in order and stop at a limit.
WALKS: Final = {
    "CLAIM", "CLAIM_STRICT", "CONSUME", "NEXT_DUE", "STATS", "OVERVIEW", "KINDS",
    "DEAD_LETTER_KINDS", "PRUNE_DEAD_LETTERS", "POP_JOBS", "DEAD_JOBS",
    "PEEK_JOBS", "DEFERRED_JOBS", "NEXT_DUE_OF_KINDS", "LEASE_DUE",
}  # fmt: skip

# They read the dead versions of rolled-back claims behind all live ones. The first run marks them,
# and the second skips them.
WALKS_BEHIND: Final = {
    "CLAIM", "NEXT_DUE", "NEXT_DUE_OF_KINDS", "STATS", "OVERVIEW", "KINDS",
    "PEEK_JOBS", "SAMPLED_CUTS",
}  # fmt: skip


@pytest.fixture(scope="module")
def ids(filled: psycopg.Connection[Any]) -> dict[str, list[int]]:
    """The ids of leased messages by lease, and of dead letters."""
    leased = filled.execute(
        'SELECT id FROM delayed_queue WHERE "lockUuid" = ANY (%s) ORDER BY "lockUuid", id',
        [lease_ids(10)],
    )
    dead = filled.execute(
        """SELECT id FROM delayed_queue_dead_letter WHERE "pKind" = 'due|json' LIMIT 1000"""
    )
    return {"leased": [row[0] for row in leased], "dead": [row[0] for row in dead]}


def with_ids(case: Case, ids: dict[str, list[int]]) -> dict[str, Any]:
    """Return the parameters with real ids in place of their number."""
    found = ids["dead" if DEAD_PRIMARY in case.reads else "leased"]
    if "ids" not in case.params:
        return case.params
    chosen = found[: case.params["ids"]]
    made = {name: make(chosen) for name, make in case.params.items() if callable(make)}
    return case.params | made | {"ids": chosen}


def planned(
    connection: psycopg.Connection[Any],
    statement: str,
    params: dict[str, Any],
    beliefs: dict[str, str],
    *,
    generic: bool = False,
) -> Plan:
    with connection.transaction(force_rollback=True):
        for name, value in beliefs.items():
            connection.execute("SELECT set_config(%s, %s, true)", [name, value])
        return explain(connection, statement, params, generic=generic)


def test_every_statement_has_a_case():
    assert {case.statement for case in CASES} == STATEMENTS.keys()
    assert [name for name, times in Counter(case.id for case in CASES).items() if times > 1] == []


@pytest.mark.parametrize(
    "generic", [False, pytest.param(True, marks=pytest.mark.long)], ids=["custom", "generic"]
)
@pytest.mark.parametrize(
    ("case", "beliefs"),
    [
        *(pytest.param(case, WARM, id=f"{case.id}-warm") for case in CASES),
        *(
            pytest.param(case, COLD, id=f"{case.id}-cold", marks=pytest.mark.long)
            for case in CASES
            if case.statement in WALKS
        ),
    ],
)
def test_plan(tables, ids, case, beliefs, generic):
    """It reads its index, no whole table, and rows in proportion to its result."""
    statement, params = getattr(sql, case.statement), with_ids(case, ids)
    if case.statement in WALKS_BEHIND:
        planned(tables, statement, params, beliefs, generic=generic)
    plan = planned(tables, statement, params, beliefs, generic=generic)

    if not generic and beliefs is WARM and case.statement not in DEAR:
        assert plan.root["Total Cost"] < COMPILED, plan
    assert plan.rows_read() <= case.max_rows * case.n, plan
    if generic and case.may_scan_generically:
        return
    assert set(plan.scanned_whole()) <= case.scans, plan
    assert case.reads <= plan.indexes or case.or_reads in plan.indexes, plan
    assert plan.buffers <= case.max_buffers * case.n + case.fixed, plan
    assert all(rows <= case.n for rows in plan.rows_sorted()), plan


CLAIMING: Final = {
    "kind": "due|json", "limit": 100, "lease_id": "x", "retaken_id": "y", "lease": LEASE,
    "floor": NO_FLOOR, "floor_id": 0, "now": NOW,
}  # fmt: skip
BULK: Final = CLAIMING | {"kind": "bulk|json", "limit": 1000}
VISIBLE: Final = "LIMIT %(limit)s::integer"
HIDDEN: Final = "LIMIT (SELECT %(limit)s::integer)"
FLOOR: Final = 'AND ("scheduledAt", id) >= (%(floor)s::bigint, %(floor_id)s::bigint)'


def most_sorted(
    connection: psycopg.Connection[Any], removed: str, beliefs: dict[str, str]
) -> float:
    """Return the number of rows that a claim sorts without one of its limits."""
    statement = CLAIM
    for part in (removed, FLOOR):  # the floor hides the difference
        assert statement.count(part) == 1
        statement = statement.replace(part, "")
    return max(planned(connection, statement, BULK, beliefs).rows_sorted())


@pytest.mark.parametrize("tables", ["never analyzed"], indirect=True)
def test_without_the_hidden_limit_a_claim_sorts_a_table_that_was_never_analyzed(tables):
    assert most_sorted(tables, HIDDEN, WARM) == 100_000


@pytest.mark.parametrize("tables", ["analyzed"], indirect=True)
def test_without_the_visible_limit_a_claim_sorts_a_table_that_dwarfs_the_cache(tables):
    assert most_sorted(tables, VISIBLE, COLD | {"random_page_cost": "100"}) == 100_000


_WITHOUT: Final = """
DROP INDEX
    "delayed_queue__GroupPlusScheduledAtIndex", "delayed_queue__GroupPlusLeasedUntilIndex",
    "delayed_queue__GroupPlusLockUuidIndex", message_of_batch
"""


def outline(plan: Plan) -> list[tuple[str, str | None, float]]:
    """Return the scans with their rows; free space decides the pages that are written."""
    return [
        (node["Node Type"], node.get("Index Name"), node["Actual Rows"]) for node in plan.nodes()
    ]


@pytest.mark.parametrize("tables", ["analyzed"], indirect=True)
@pytest.mark.parametrize("statement", [CLAIM, CONSUME], ids=["claim", "consume"])
def test_g8_without_a_group_the_plan_and_the_pages_are_as_before(tables, statement):
    """Compare with the statement without the indexes and the columns (G8, B11)."""
    explain(tables, statement, CLAIMING, generic=False)
    now = explain(tables, statement, CLAIMING, generic=False)
    with tables.transaction(force_rollback=True):
        tables.execute(_WITHOUT)
        plain = statement.replace(', "batchId"\n', "\n").replace(', "group"\n', "\n")
        plain = plain.replace('"group", CASE', "CASE")
        assert plain != statement
        before = explain(tables, plain, CLAIMING, generic=False)
    assert outline(now) == outline(before)
    # Written pages vary; entries in three indexes would be a fifth more.
    assert now.buffers <= 1.1 * before.buffers


@pytest.mark.parametrize("tables", ["analyzed"], indirect=True)
def test_g8_messages_without_a_group_are_in_none_of_the_indexes(tables: psycopg.Connection[Any]):
    predicates = tables.execute(
        """SELECT pg_get_expr(indpred, indrelid) FROM pg_index
        WHERE indexrelid::regclass::text LIKE '%GroupPlus%'"""
    ).fetchall()
    assert len(predicates) == 3
    assert all('("group" IS NOT NULL)' in each for (each,) in predicates)


def of_a_group(name: str, count: int) -> str:
    at = dict.fromkeys(("scheduledAt", "scheduledAtInitially", "createdAt"), "n + 1")
    return scrambled(
        "delayed_queue", count, pKey=f"'{name}' || n", pKind="'large|json'", payload="'x'",
        group=f"'{name}'", **at,
    )  # fmt: skip


@pytest.mark.parametrize("tables", ["analyzed"], indirect=True)
@pytest.mark.parametrize("generic", [False, True])
def test_g7_the_messages_of_a_large_group_cost_a_small_one_nothing(tables, generic):
    """The planner has statistics of the large group only."""
    with tables.transaction(force_rollback=True):
        tables.execute("TRUNCATE delayed_queue")
        tables.execute(of_a_group("many", 100_000))
        tables.execute("ANALYZE delayed_queue")
        tables.execute(of_a_group("few", 1))
        lease = CLAIMING | {
            "kind": "large|json", "ungrouped": [], "number": 0, "limit": 1000, "heads": [],
            "head_groups": [], "groups": ["few", "many"], "numbers": [1, 9], "retaken": [1, 9],
            "fresh": [1, 9],
        }  # fmt: skip
        plan = explain(tables, LEASE_GROUPS, lease, generic=generic)
    tables.execute("ANALYZE delayed_queue")  # a rollback does not restore the number of rows
    assert plan.rows_read() <= 50


# A million messages of ten thousand groups, each with a lease.
_HELD_BACK: Final = scrambled(
    "delayed_queue", 1_000_000, pKey="'held-' || n", pKind="'held|json'", payload="'x'",
    scheduledAt=f"{NOW} + CASE WHEN n < 10000 THEN 1000000 ELSE -n END",
    scheduledAtInitially=f"{NOW} - n", createdAt=f"{NOW}",
    lockUuid="CASE WHEN n < 10000 THEN 'lease-' || n END",
    group="'tenant-' || lpad((n % 10000)::text, 5, '0')",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("tables", ["analyzed"], indirect=True)
def test_g7_a_million_held_back_of_ten_thousand_groups_cost_a_claim_no_more(tables):
    """For a full group a claim reads its first message and its lease, and leases nothing."""
    with tables.transaction(force_rollback=True):
        tables.execute(_HELD_BACK)
        tables.execute(
            """INSERT INTO delayed_queue_limit ("pKind", "group", concurrency)
            VALUES ('held|json', '', 1)"""
        )
        tables.execute("ANALYZE delayed_queue")
        look = {"kind": "held|json", "since": "tenant-09000", "groups": MOST_GROUPS, "now": NOW}
        plan = explain(tables, GROUPS_AHEAD, look, generic=True)
        rows = [GroupRow(*each) for each in tables.execute(GROUPS_AHEAD, look)]
    tables.execute("ANALYZE delayed_queue")
    assert plan.rows_read() <= 4 * MOST_GROUPS
    assert plan.buffers <= 20 * MOST_GROUPS
    assert (len(rows), rows[-1].name) == (MOST_GROUPS, "tenant-09511")
    assert not any(candidate(row, NOW).room for row in rows)
