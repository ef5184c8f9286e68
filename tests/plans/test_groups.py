"""What groups cost those who have none (G8), and what is held back costs a claim (G7)."""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg
import pytest

from delayed_queue.queue.dealing import candidate
from delayed_queue.queue.group_claims import MOST_GROUPS
from delayed_queue.queue.store.claim import CLAIM, CONSUME, NO_FLOOR
from delayed_queue.queue.store.groups import GROUPS_AHEAD, LEASE_GROUPS, GroupRow
from tests.plans.case import LEASE
from tests.plans.conftest import NOW
from tests.plans.explain import Plan, explain

pytestmark = pytest.mark.django_db

_WITHOUT: Final = """
DROP INDEX
    "delayed_queue__GroupPlusScheduledAtIndex", "delayed_queue__GroupPlusLeasedUntilIndex",
    "delayed_queue__GroupPlusLockUuidIndex"
"""
CLAIMING: Final = {
    "kind": "due|json", "limit": 100, "lease_id": "x", "retaken_id": "y", "lease": LEASE,
    "floor": NO_FLOOR, "floor_id": 0, "now": NOW,
}  # fmt: skip


def outline(plan: Plan) -> list[tuple[str, str | None, float]]:
    """Return what was read: where rows are written depends on which pages have room."""
    return [
        (node["Node Type"], node.get("Index Name"), node["Actual Rows"]) for node in plan.nodes()
    ]


@pytest.mark.parametrize("tables", ["analyzed"], indirect=True)
@pytest.mark.parametrize("statement", [CLAIM, CONSUME], ids=["claim", "consume"])
def test_g8_without_a_group_the_plan_and_the_pages_are_as_before(
    tables: psycopg.Connection[Any], statement: str
):
    """As of the same statement on a table without the indexes, and without naming the column."""
    explain(tables, statement, CLAIMING, generic=False)
    now = explain(tables, statement, CLAIMING, generic=False)
    with tables.transaction(force_rollback=True):
        tables.execute(_WITHOUT)
        plain = statement.replace(', "group"\n', "\n")
        assert plain != statement
        before = explain(tables, plain, CLAIMING, generic=False)
    assert outline(now) == outline(before)
    assert now.buffers <= 1.02 * before.buffers


@pytest.mark.parametrize("tables", ["analyzed"], indirect=True)
def test_g8_messages_without_a_group_are_in_none_of_the_indexes(tables: psycopg.Connection[Any]):
    predicates = tables.execute(
        """SELECT pg_get_expr(indpred, indrelid) FROM pg_index
        WHERE indexrelid::regclass::text LIKE '%GroupPlus%'"""
    ).fetchall()
    assert len(predicates) == 3
    assert all('("group" IS NOT NULL)' in each for (each,) in predicates)


_ONE_GROUP: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", "group"
)
SELECT %(group)s || n, 'large|json', 'x', n, n, n, %(group)s
FROM generate_series(%(first)s::integer, 100000) AS n
"""


@pytest.mark.parametrize("tables", ["analyzed"], indirect=True)
@pytest.mark.parametrize("generic", [False, True])
def test_g7_the_messages_of_a_large_group_cost_a_small_one_nothing(
    tables: psycopg.Connection[Any], generic: bool
):
    """Though the planner knows of no other group than the large one."""
    with tables.transaction(force_rollback=True):
        tables.execute("TRUNCATE delayed_queue")
        tables.execute(_ONE_GROUP, {"group": "a group of many", "first": 1})
        tables.execute("ANALYZE delayed_queue")
        tables.execute(_ONE_GROUP, {"group": "few", "first": 100_000})
        lease = {
            "kind": "large|json", "now": NOW, "lease_id": "x", "retaken_id": "y", "lease": LEASE,
            "ungrouped": [], "number": 0, "limit": 1000, "heads": [], "head_groups": [],
            "groups": ["few", "a group of many"], "numbers": [1, 9], "retaken": [1, 9],
            "fresh": [1, 9],
        }  # fmt: skip
        plan = explain(tables, LEASE_GROUPS, lease, generic=generic)
    tables.execute("ANALYZE delayed_queue")  # a rollback does not restore how many rows there are
    assert plan.rows_read() <= 50


_HELD_BACK: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", "lockUuid",
    "group"
)
SELECT
    'held-' || n, 'held|json', 'x',
    %(now)s + CASE WHEN n < 10000 THEN 1000000 ELSE -n END, %(now)s - n, %(now)s,
    CASE WHEN n < 10000 THEN 'lease-' || n END, 'tenant-' || lpad((n %% 10000)::text, 5, '0')
FROM (SELECT i * 7919::bigint %% 1000000 AS n FROM generate_series(1, 1000000) AS i) AS scrambled
"""
_LIMITED: Final = """
INSERT INTO delayed_queue_limit ("pKind", "group", concurrency) VALUES ('held|json', '', 1)
"""


@pytest.mark.long
def test_g7_a_million_held_back_of_ten_thousand_groups_cost_a_claim_no_more(
    filled: psycopg.Connection[Any],
):
    """Full groups: the look reads their first message and their lease, and nothing is leased."""
    with filled.transaction(force_rollback=True):
        filled.execute(_HELD_BACK, {"now": NOW})
        filled.execute(_LIMITED)
        filled.execute("ANALYZE delayed_queue")
        look = {"kind": "held|json", "since": "tenant-09000", "groups": MOST_GROUPS, "now": NOW}
        plan = explain(filled, GROUPS_AHEAD, look, generic=True)
        assert plan.rows_read() <= 4 * MOST_GROUPS
        assert plan.buffers <= 20 * MOST_GROUPS
        started = time.perf_counter()
        rows = [GroupRow(*each) for each in filled.execute(GROUPS_AHEAD, look)]
        print(f"{(time.perf_counter() - started) / MOST_GROUPS * 1e6:.0f} µs a group")  # noqa: T201
    assert (len(rows), rows[-1].name) == (MOST_GROUPS, "tenant-09511")
    assert not any(candidate(row, NOW).room for row in rows)
