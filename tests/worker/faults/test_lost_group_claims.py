"""A worker of a limited queue whose round trip breaks: no slot is used twice (G2, G3, W7)."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Final

import pytest

from delayed_queue import Envelope, Groups, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.worker.engine.settling import Counts
from tests.support.aiming import COMMIT, GROUP_CUTS, LEASE_GROUPS
from tests.support.operations import PAST
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

HOUR: Final = timedelta(hours=1)
EACH: Final = 30


class Busy:
    """A handler that records its messages, and the maximum of each group at a time."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.keys: list[str] = []
        self.most = 0
        self._running: Counter[str | None] = Counter()
        self._lock = threading.Lock()

    def __call__(self, envelope: Envelope) -> None:
        with self._lock:
            self.keys.append(envelope.key)
            self.attempts.append(envelope.attempt)
            self._running[envelope.group] += 1
            self.most = max(self.most, *self._running.values())
        with self._lock:
            self._running[envelope.group] -= 1


@pytest.mark.parametrize(("statement", "stage"), GROUP_CUTS)
@pytest.mark.parametrize(
    ("rules", "most", "nth"), [(Groups(concurrency=2), 2, 3), (Groups(order="fifo"), 1, 1)], ids=str
)
def test_a_lost_exchange_loses_no_message_and_no_slot(
    queue, proxy, rules, most, statement, stage, nth
):
    """At once, before leases of an hour end, and as a first attempt: no handler saw them."""
    queue.offer_batch(
        [
            ScheduledMessage(f"{group}{number:02}", None, PAST, group=group)
            for number in range(EACH)
            for group in "abc"
        ]
    )
    busy = Busy()
    after = LEASE_GROUPS if statement == COMMIT else ""
    aim = proxy.aim_at(statement, stage, nth=nth, after=after)
    declared = handler_of("faults", busy, groups=rules)
    with running(worker := worker_with(declared, lease=HOUR, concurrency=4, batch_size=6)):
        aim.wait()
        proxy.cut_aimed()
        wait_until(lambda: worker.counts.total == 3 * EACH)
    assert worker.counts == Counts(done=3 * EACH)
    assert not Message.objects.exists()
    assert set(busy.attempts) == {1}
    assert busy.most <= most
    if most == 1:
        assert all(
            [key for key in busy.keys if key[0] == group]
            == [f"{group}{number:02}" for number in range(EACH)]
            for group in "abc"
        )
