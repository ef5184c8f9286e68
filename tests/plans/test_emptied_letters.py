"""Dead letters in an emptied and vacuumed table, which PostgreSQL takes for empty."""

from __future__ import annotations

from typing import Final

import pytest

from delayed_queue.queue.store.dead_letters import REDRIVE, family_params
from tests.plans.explain import explain
from tests.support.concurrency import raw_connection

LETTERS: Final = 20_000
_FILL: Final = """
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt",
    fingerprint
)
SELECT 'orders|json', 'k' || number, '1', 1, 'rejected', 0, 0, number, number %% 10
FROM generate_series(1, %(count)s) AS number
"""
_ALL: Final = "SELECT id FROM delayed_queue_dead_letter ORDER BY id"
# VACUUM of an emptied table beside another session leaves pages without rows.
_EMPTIED: Final = """
UPDATE pg_class
SET reltuples = 0, relpages = 100
WHERE oid = 'delayed_queue_dead_letter'::regclass
"""


@pytest.mark.django_db
@pytest.mark.parametrize("generic", [False, True])
def test_few_letters_do_not_read_all_for_each(generic: bool) -> None:
    params = {"overwrite": False, "kind": "orders|json", "now": None, **family_params()}
    with raw_connection() as own, own.transaction(force_rollback=True):
        own.execute(_FILL, {"count": LETTERS})
        own.execute(_EMPTIED)
        # The last ones: a walk of the primary key from its start reads all others first.
        ids = [row[0] for row in own.execute(_ALL)][-100:]
        plan = explain(own, REDRIVE, {"ids": ids, **params}, generic=generic)
    assert plan.rows_read() <= 3 * LETTERS, plan
