"""A claim never exceeds its limit, under every plan of PostgreSQL (Q18, S7)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, Final

import psycopg
import pytest
from django.db import connection, transaction

from delayed_queue.queue.store.claim import NO_FLOOR
from tests.support.sampling import sample
from tests.support.statements import sql

NOW: Final = 1_000_000
LIMIT: Final = 3
DUE: Final = 50
PARAMS: Final = {
    "kind": "hostile|json", "limit": LIMIT, "lease_id": "mine", "retaken_id": "again",
    "lease": 1000, "floor": NO_FLOOR, "floor_id": 0, "now": NOW,
    "kinds": ["empty|json", "hostile|json"], "ttr": None, "default_ttr": 1000,
}  # fmt: skip
SETTINGS: Final = (
    "hashjoin", "mergejoin", "nestloop", "material", "hashagg", "sort", "indexscan", "bitmapscan",
    "seqscan",
)  # fmt: skip


@pytest.fixture(params=["in order", "in reverse"])
def due(request: pytest.FixtureRequest, db: None) -> psycopg.Connection[Any]:
    """Fifty due messages, inserted in the order of their schedule, or in reverse."""
    connection.ensure_connection()
    raw: psycopg.Connection[Any] = connection.connection
    raw.execute("TRUNCATE delayed_queue")
    # Disabled plans look so expensive that PostgreSQL would compile each.
    raw.execute("SET LOCAL jit = off")
    raw.execute(
        """
        INSERT INTO delayed_queue (
            "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
        )
        SELECT 'key-' || n, 'hostile|json', '1', n, n, n, '{"url": "https://host-1/hook"}'
        FROM generate_series(1, %(due)s) AS n
        ORDER BY CASE %(order)s WHEN 'in order' THEN n ELSE -n END
        """,
        {"due": DUE, "order": request.param},
    )
    return raw


def hostile(most: int = len(SETTINGS)) -> Iterator[tuple[str, ...]]:
    """Yield every combination of at most that many settings."""
    for size in range(most + 1):
        yield from combinations(SETTINGS, size)


def taken(raw: psycopg.Connection[Any], statement: str, *, off: tuple[str, ...]) -> list[str]:
    """Return the keys claimed with those settings off, and roll back."""
    with transaction.atomic():
        for name in off:
            raw.execute(f"SET LOCAL enable_{name} = off")
        # Unprepared: a prepared statement, and a function, would keep a plan of other settings.
        raw.execute("DISCARD PLANS")
        rows = raw.execute(statement, PARAMS, prepare=False).fetchall()
        transaction.set_rollback(True)
    return sorted(row[1] for row in rows)


FUNCTION: Final = """
SELECT id, key FROM delayed_queue_claim(%(kind)s, %(limit)s)
"""


@pytest.mark.parametrize("statement", ["CLAIM", "CONSUME", "POP_JOBS", "FUNCTION"])
@pytest.mark.parametrize(
    ("due", "analyzed"),
    sample(
        product(["in order", "in reverse"], [False, True]),
        ("in order", False),
        ("in reverse", True),
    ),
    indirect=["due"],
)
def test_no_planner_setting_takes_more_than_the_limit(due, statement, analyzed):
    if analyzed:
        due.execute("ANALYZE delayed_queue")

    text = FUNCTION if statement == "FUNCTION" else getattr(sql, statement)
    answers = {off: taken(due, text, off=off) for off in hostile()}

    assert len(answers) == 2 ** len(SETTINGS)
    assert {off: keys for off, keys in answers.items() if keys != ["key-1", "key-2", "key-3"]} == {}


def test_s7_no_planner_setting_takes_more_than_the_limit_by_group(due: psycopg.Connection[Any]):
    """Each setting and each pair of them off, in a queue with limits."""
    due.execute("""UPDATE delayed_queue SET "group" = 'group-' || id % 7""")
    due.execute(
        """
        INSERT INTO delayed_queue_limit ("pKind", "group", concurrency)
        VALUES ('hostile|json', '', 2)
        """
    )
    answers = {off: taken(due, FUNCTION, off=off) for off in hostile(2)}
    assert {len(set(keys)) for keys in answers.values()} == {LIMIT}
    assert {len(keys) for keys in answers.values()} == {LIMIT}
