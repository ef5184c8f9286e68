"""Under an old snapshot nothing that was handled can be cleaned away; claims do not read it."""

from __future__ import annotations

import pytest

from delayed_queue.queue.store.claim import NO_FLOOR, claiming
from tests.plans.explain import explain
from tests.support.concurrency import raw_connection
from tests.support.running import handler_of, worker_with

HANDLED = 50_000
BATCH = 100
# Due one after the other, 10 ms apart, the last of them so many milliseconds ago.
_FILL = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT 'k' || number, 'orders|json', '1', due, due, due
FROM generate_series(1, %(count)s) AS number
CROSS JOIN LATERAL (
    SELECT
        floor(extract(epoch FROM now()) * 1000)::bigint
        - %(ago)s - 10 * (%(count)s - number) AS due
) AS times
"""


@pytest.mark.django_db(transaction=True)
def test_a_claim_reads_no_more_after_fifty_thousand_than_after_one() -> None:
    with raw_connection() as holder, raw_connection() as own:

        def pages_after(count: int) -> tuple[int, int]:
            """Handle so many; return the pages of a claim as the worker makes it, and of all."""
            own.execute(_FILL, {"count": count, "ago": 20_000})
            worker = worker_with(handler_of("orders", lambda envelope: None), burst=True)
            assert worker.run().done == count
            own.execute(_FILL, {"count": BATCH, "ago": 0})
            position = worker.consumers[0].schedule.position
            found = pages_of_a_claim(position), pages_of_a_claim(NO_FLOOR)
            own.execute("DELETE FROM delayed_queue")
            return found

        def pages_of_a_claim(position: int) -> int:
            step = claiming("orders|json", BATCH, "own", "taken", 60_000, floor=position)
            return explain(own, *step, generic=False).buffers

        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        first, _ = pages_after(1_000)
        last, of_all = pages_after(HANDLED)
        # Of all is what each claim would read without a position.
        assert last < 1.6 * first < of_all / 2
