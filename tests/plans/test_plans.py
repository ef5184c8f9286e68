"""Every statement of ``sql`` at 200,000 rows: its index, its rows, its pages."""

from __future__ import annotations

from typing import Any, Final

import psycopg
import pytest

from delayed_queue.queue.store.claim import CLAIM, NO_FLOOR
from tests.plans.case import DEAD_PRIMARY, LEASE, Case, lease_ids
from tests.plans.cases import CASES
from tests.plans.conftest import NOW
from tests.plans.explain import Plan, explain
from tests.support.statements import STATEMENTS, sql

# They use a connection of their own, but the mark is what has a test database made.
pytestmark = pytest.mark.django_db

# What the planner believes of the machine. The second stands for a table that dwarfs the cache
# on a disk that seeks: there it shuns indexes, unless it knows how few rows are wanted.
WARM: Final = {"effective_cache_size": "4GB"}
COLD: Final = {"effective_cache_size": "8kB", "random_page_cost": "8"}

# From what estimate on PostgreSQL compiles a plan, at each run, where it has LLVM: for seconds.
COMPILED: Final = 100_000
# Estimated to be dear on tables that were never analyzed.
DEAR: Final = {"FIND_RESULT", "REDRIVE"}

# They walk an index in its order and stop at a limit.
WALKS: Final = {
    "CLAIM", "CLAIM_STRICT", "CONSUME", "NEXT_DUE", "STATS", "OVERVIEW", "KINDS",
    "DEAD_LETTER_KINDS", "DEAD_LETTER_IDS", "PRUNE_DEAD_LETTERS", "POP_JOBS", "DEAD_JOBS",
    "PEEK_JOBS", "DEFERRED_JOBS", "NEXT_DUE_OF_KINDS", "LEASE_DUE",
}  # fmt: skip

# These meet the dead versions that rolled-back claims leave behind everything else; the first walk
# marks them, and the second one passes them by.
WALKS_BEHIND: Final = {
    "CLAIM", "NEXT_DUE", "NEXT_DUE_OF_KINDS", "STATS", "OVERVIEW", "KINDS",
    "PEEK_JOBS", "ID_RANGE",
}  # fmt: skip


@pytest.fixture(scope="module")
def ids(filled: psycopg.Connection[Any]) -> dict[str, list[int]]:
    """The ids of leased messages, lease after lease, and of dead letters."""
    leased = filled.execute(
        'SELECT id FROM delayed_queue WHERE "lockUuid" = ANY (%s) ORDER BY "lockUuid", id',
        [lease_ids(10)],
    )
    dead = filled.execute(
        """SELECT id FROM delayed_queue_dead_letter WHERE "pKind" = 'due|json' LIMIT 1000"""
    )
    return {"leased": [row[0] for row in leased], "dead": [row[0] for row in dead]}


def with_ids(case: Case, ids: dict[str, list[int]]) -> dict[str, Any]:
    if "ids" not in case.params:
        return case.params
    pool = "dead" if DEAD_PRIMARY in case.reads else "leased"
    found = {"ids": ids[pool][: case.n]}
    if "messages" in case.params:
        found["messages"] = found["ids"]
    return {**case.params, **found}


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


@pytest.mark.parametrize(
    "generic", [False, pytest.param(True, marks=pytest.mark.long)], ids=["custom", "generic"]
)
@pytest.mark.parametrize(
    ("case", "beliefs"),
    [
        *(pytest.param(case, WARM, id=f"{case}-warm") for case in CASES),
        *(
            pytest.param(case, COLD, id=f"{case}-cold", marks=pytest.mark.long)
            for case in CASES
            if case.statement in WALKS
        ),
    ],
)
def test_plan(
    tables: psycopg.Connection[Any],
    ids: dict[str, list[int]],
    case: Case,
    beliefs: dict[str, str],
    generic: bool,
):
    """It reads the index, nothing from end to end, no more than a multiple of what it is for."""
    statement, params = getattr(sql, case.statement), with_ids(case, ids)
    if case.statement in WALKS_BEHIND:
        planned(tables, statement, params, beliefs, generic=generic)
    plan = planned(tables, statement, params, beliefs, generic=generic)

    if not generic and beliefs is WARM and case.statement not in DEAR:
        assert plan.root["Total Cost"] < COMPILED, plan
    case = case.on(tables)
    assert plan.rows_read() <= case.rows * case.n, plan
    if generic and case.may_scan_generically:
        return
    assert set(plan.scanned_whole()) <= case.scans, plan
    assert case.reads <= plan.indexes or case.or_reads & plan.indexes, plan
    assert plan.buffers <= case.buffers * case.n + case.fixed, plan
    assert all(rows <= case.n for rows in plan.rows_sorted()), plan


VISIBLE: Final = "LIMIT %(limit)s::integer"
FLOOR: Final = 'AND ("scheduledAt", id) >= (%(floor)s::bigint, %(floor_id)s::bigint)'
HIDDEN: Final = "LIMIT (SELECT %(limit)s::integer)"
BULK: Final = {
    "kind": "bulk|json", "limit": 1000, "lease_id": "x", "retaken_id": "y", "lease": LEASE,
    "floor": NO_FLOOR, "floor_id": 0, "now": NOW,
}  # fmt: skip


def without(limit: str) -> str:
    """Return the claim without that limit, and without the floor, which hides the difference."""
    statement = CLAIM
    for part in (limit, FLOOR):
        assert statement.count(part) == 1
        statement = statement.replace(part, "")
    return statement


@pytest.mark.parametrize("tables", ["never analyzed"], indirect=True)
def test_with_only_the_visible_limit_a_claim_sorts_all_that_is_due(
    tables: psycopg.Connection[Any],
):
    """Why there is a hidden one: for a table that was never analyzed."""
    plan = planned(tables, without(HIDDEN), BULK, WARM)

    assert max(plan.rows_sorted()) == 100_000


@pytest.mark.parametrize("tables", ["analyzed"], indirect=True)
def test_with_only_the_hidden_limit_a_claim_sorts_all_that_is_due(
    tables: psycopg.Connection[Any],
):
    """Why there is a visible one: for a table that dwarfs the cache."""
    plan = planned(tables, without(VISIBLE), BULK, COLD)

    assert max(plan.rows_sorted()) == 100_000
