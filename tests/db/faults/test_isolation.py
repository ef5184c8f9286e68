"""Projects whose transactions are serializable, by Django's option or by the server's (Q33)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from django.db import connections
from django.db.backends.postgresql.psycopg_any import IsolationLevel

from delayed_queue import DelayedQueue
from tests.support.ledger import effects, is_drained
from tests.support.processes import wait_until
from tests.support.programs import working
from tests.support.proxy import Proxy
from tests.support.sampling import sample

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

MESSAGES: Final = 300
THREADS: Final = 3
# The option as part of a worker's URL, and as settings of this process.
LEVELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "of Django": ("isolation_level=4", {"isolation_level": IsolationLevel.SERIALIZABLE}),
    "of the server": (
        "options=-c%20default_transaction_isolation%3Dserializable",
        {"options": "-c default_transaction_isolation=serializable"},
    ),
}


@pytest.fixture(params=sample(LEVELS, "of Django"))
def level(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[str]:
    """The option for a worker; the connections of this process have it, too."""
    in_url, options = LEVELS[request.param]
    found = connections["default"].settings_dict
    kept = found["OPTIONS"]
    connections["default"].close()
    found["OPTIONS"] = {**kept, **options}
    yield in_url
    connections["default"].close()
    found["OPTIONS"] = kept


def offered(queue: DelayedQueue, prefix: str) -> set[str]:
    keys = {f"{prefix}{number}" for number in range(MESSAGES // THREADS)}
    try:
        for key in keys:
            queue.offer_or_update(key, key)
    finally:
        connections["default"].close()
    return keys


def test_q33_a_worker_and_offers_do_not_hold_each_other_up(level: str, proxy: Proxy) -> None:
    """W7: a serialization failure is retried at once, and is no outage.

    There are two queues, one with a transactional handler: only that handler runs the project's
    transactions.
    """
    names = [("patient", "a"), ("exact", "b"), ("exact", "c")]
    queues = ("--queue", "patient", "--queue", "exact", "--concurrency", "4")
    with working(*queues, url=f"{proxy.url}&{level}") as worker:
        wait_until(lambda: worker.has_said("worker_started"))
        with ThreadPoolExecutor(THREADS) as pool:
            keys = set().union(
                *pool.map(lambda each: offered(DelayedQueue(each[0]), each[1]), names)
            )
        wait_until(is_drained)
        assert worker.stop() == 0
    assert effects() == Counter(keys)
    assert "database_unavailable" not in worker.log()
    assert "could not serialize" not in worker.log()
