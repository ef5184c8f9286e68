"""The statements inside the SQL functions at 200,000 rows (S3, S7)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from delayed_queue.messages import from_milliseconds
from tests.plans.explain import Plan
from tests.plans.rows import NOW, QUEUES
from tests.support.functions import CLOCKED

pytestmark = pytest.mark.django_db

# The module logs the plan of each statement, those within functions too.
WATCHED: Final = """
LOAD 'auto_explain';
SET LOCAL auto_explain.log_min_duration = 0;
SET LOCAL auto_explain.log_nested_statements = on;
SET LOCAL auto_explain.log_analyze = on;
SET LOCAL auto_explain.log_format = json;
SET LOCAL client_min_messages = log;
"""
FILLS: Final = QUEUES
LEASE: Final = "'lease-1700'"
CALLS: Final = {
    "an offer": ("offer('bulk', 'new', '{\"a\": 1}')", 1, 10),
    "an update": ("offer('bulk', 'key-5', '{\"a\": 1}')", 1, 10),
    "no update": ("offer('bulk', 'key-5', '1', can_update => false)", 1, 10),
    "a drop": ("drop('bulk', 'key-5')", 1, 10),
    "a read": ("read('bulk', 'key-5')", 1, 10),
    "an acknowledgement": (f"acknowledge({LEASE})", 100, 5),
    "one of a lease": (f"acknowledge({LEASE}, ARRAY[1::bigint])", 100, 5),
    "a release": (f"release({LEASE})", 100, 5),
    "a rejection": (f"reject({LEASE})", 100, 5),
    "an extension": (f"extend({LEASE})", 100, 5),
}  # fmt: skip


def plans_of(connection: psycopg.Connection[Any], *statements: str) -> list[Plan]:
    """Run the statements, roll them back, and return each plan that was used."""
    logged: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        logged.append(diagnostic.message_primary or "")

    connection.add_notice_handler(note)
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(CLOCKED)
            now = from_milliseconds(NOW).isoformat()
            connection.execute("SELECT set_config('tests.now', %s, true)", [now])
            connection.execute(WATCHED)
            for each in statements:
                connection.execute(each)
    finally:
        connection.remove_notice_handler(note)
    found = [each.partition("plan:\n")[2] for each in logged]
    return [Plan(json.loads(each)["Plan"]) for each in found if each]


def of_tables(plans: list[Plan]) -> Iterator[Plan]:
    for each in plans:
        if any(node.get("Relation Name") for node in each.nodes()):
            yield each


@pytest.mark.parametrize("name", CALLS)
def test_s3_a_call_reads_its_rows_by_an_index(tables: psycopg.Connection[Any], name: str):
    call, n, most = CALLS[name]
    plans = list(of_tables(plans_of(tables, f"SELECT * FROM clocked.delayed_queue_{call}")))  # noqa: S608
    assert plans
    assert [each.scanned_whole() for each in plans if each.scanned_whole()] == []
    assert sum(each.rows_read() for each in plans) <= most * n + 20, plans


@pytest.mark.parametrize("kind", ["bulk", "due", "mixed"])
@pytest.mark.parametrize("n", [1, 100])
def test_s2_a_claim_reads_its_rows_by_an_index(tables: psycopg.Connection[Any], kind: str, n: int):
    claim = f"SELECT * FROM clocked.delayed_queue_claim('{kind}', {n})"  # noqa: S608
    plans = list(of_tables(plans_of(tables, claim)))
    assert len(plans) >= 3
    assert [each.scanned_whole() for each in plans if each.scanned_whole()] == []
    assert all(rows <= n for each in plans for rows in each.rows_sorted()), plans
    assert sum(each.rows_read() for each in plans) <= 12 * n + 400, plans


@pytest.mark.parametrize("kind", ["grouped", "one", "ordered"])
@pytest.mark.parametrize("n", [1, 100])
def test_s7_a_claim_by_group_reads_few_rows_of_each(tables, kind, n):
    """At most 1,000 due messages, and of each of 200 groups what it may lease."""
    claim = f"SELECT * FROM clocked.delayed_queue_claim('{kind}', {n})"  # noqa: S608
    plans = list(of_tables(plans_of(tables, claim)))
    assert len(plans) >= 5
    assert {name for each in plans for name in each.scanned_whole()} == set()
    assert sum(each.rows_read() for each in plans) <= 4_000 + 400 * n, plans
