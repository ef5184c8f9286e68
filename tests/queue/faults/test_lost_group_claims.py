"""A claim by group whose connection is cut at any stage (G2, G3, G5)."""

from __future__ import annotations

from typing import Final

import pytest
from django.db import connection

from delayed_queue import DelayedQueue, Groups, ScheduledMessage
from delayed_queue.models import Limit, Message
from tests.support.aiming import COMMIT, GROUP_CUTS, LEASE_GROUPS, Stage
from tests.support.losing import losing
from tests.support.proxy import Proxy

HOUR_MS: Final = 3_600_000
_EXPIRE: Final = """
UPDATE delayed_queue SET "scheduledAt" = "scheduledAtInitially" WHERE "lockUuid" IS NOT NULL
"""


def lose(queue: DelayedQueue, proxy: Proxy, statement: str, stage: Stage) -> list[str]:
    """Return the result of a poll whose first claim was cut off and retried."""
    queue.offer_batch([ScheduledMessage(key, None, group=key[0]) for key in ("a1", "a2", "a3")])
    batch = losing(
        proxy, lambda: queue.try_poll_many(10), lambda: None,
        pattern=statement, stage=stage, after=LEASE_GROUPS if statement == COMMIT else "",
    )  # fmt: skip
    return [each.key for each in batch]


@pytest.mark.parametrize(("statement", "stage"), GROUP_CUTS)
@pytest.mark.parametrize(("rules", "most"), [(Groups(concurrency=2), 2), (Groups(order="fifo"), 1)])
def test_a_lost_claim_holds_its_slots_and_loses_no_message(
    queue: DelayedQueue, proxy: Proxy, statement: str, stage: Stage, rules: Groups, most: int
):
    """Messages of a claim whose answer was lost are leased again once their leases expire."""
    queue.groups.set(rules)
    found = lose(queue, proxy, statement, stage)
    assert len(found) == (0 if stage is Stage.COMMITTED else most)
    assert Message.objects.exclude(lease_id=None).count() == most
    handled: list[str] = []
    for _ in range(3):
        with connection.cursor() as cursor:
            cursor.execute(_EXPIRE)
        batch = queue.try_poll_many(10)
        handled += [each.key for each in batch]
        assert len(batch) <= most
        assert batch.acknowledge() == len(batch)
    assert handled == ["a1", "a2", "a3"]


@pytest.mark.parametrize(("statement", "stage"), GROUP_CUTS)
@pytest.mark.parametrize(
    ("rules", "group"),
    [(Groups(rate="1/h", burst=2), "a"), (Groups(queue_rate="1/h", queue_burst=2), "")],
)
def test_a_lost_claim_spends_its_permits_once(queue, proxy, statement, stage, rules, group):
    queue.groups.set(rules)
    found = lose(queue, proxy, statement, stage)
    assert len(found) == (0 if stage is Stage.COMMITTED else 2)
    (leased_until,) = set(
        Message.objects.exclude(lease_id=None).values_list("scheduled_at", flat=True)
    )
    leased_at = (leased_until - queue.lease_duration).timestamp() * 1000
    spent_until = Limit.objects.get(kind=queue.kind, group=group).spent_until
    assert spent_until == pytest.approx(leased_at + 2 * HOUR_MS, abs=1)
    assert len(queue.try_poll_many(10)) == 0
