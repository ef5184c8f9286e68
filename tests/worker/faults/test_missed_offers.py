"""Offers that a worker misses during an outage are found after it (W7)."""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg
import pytest

from delayed_queue import DelayedQueue
from tests.support.aiming import ACKNOWLEDGE, Stage
from tests.support.ledger import effects
from tests.support.processes import wait_until
from tests.support.programs import working
from tests.support.proxy import Proxy
from tests.workerapp.handlers import GATE

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.usefixtures("each_round"),
]


def test_w7_an_offer_during_an_outage_that_began_in_an_acknowledgement_is_found_at_once(
    proxy: Proxy, other: psycopg.Connection[Any]
) -> None:
    """The worker had polled, and was about to sleep for its poll interval."""
    queue = DelayedQueue("gated")
    other.execute("SELECT pg_advisory_lock(%s)", [GATE])
    queue.offer_or_update("before", 1)
    with working("--queue", "gated", "--poll-interval", "600", url=proxy.url) as worker:
        wait_until(lambda: effects()["before"] == 1)
        aim = proxy.aim_at(ACKNOWLEDGE, Stage.UNSENT)
        other.execute("SELECT pg_advisory_unlock(%s)", [GATE])
        aim.wait()
        proxy.refuse()
        wait_until(partial(worker.has_said, "database_unavailable"))
        queue.offer_or_update("after", 1)
        proxy.accept()
        wait_until(lambda: effects()["after"] == 1)
