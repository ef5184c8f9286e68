"""Jobs of batches whose connection is cut: one ``then``, and true counts (B7)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.exceptions import OutcomeUnknown
from delayed_queue.http.jobs.adding import delete_job
from delayed_queue.http.jobs.batches import close_batch, open_batch
from delayed_queue.http.jobs.consuming import bury_job, finish_job
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import Message, StoredBatch
from tests.http.jobs.support import add, pop_jobs
from tests.support.aiming import COMMIT, Stage
from tests.support.losing import losing
from tests.support.proxy import Proxy

pytestmark = pytest.mark.usefixtures("proxied")

# In the transaction of an end, which has one round trip and no COMMIT of its own.
COUNTING: Final = r"UPDATE delayed_queue_batch AS stored"
_ENDS: Final[dict[str, tuple[Callable[[str, str], Any], str]]] = {
    "finish": (lambda key, token: finish_job("orders", key, token), "done"),
    "bury": (lambda key, token: bury_job("orders", key, token), "dead"),
    "delete": (lambda key, _: delete_job("orders", key), "dropped"),
}


def counts() -> dict[str, int]:
    stored = DelayedQueue("reports").read("then")
    assert stored is not None, "then was not added"
    assert not StoredBatch.objects.exists()
    given = stored.headers["batch"]
    return {name: value for name, value in given.items() if value and name != "id"}


def opened() -> int:
    return open_batch(job_from({"topic": "reports", "jobId": "then"}))


def nothing() -> None:
    """No caller runs meanwhile."""


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("how", _ENDS)
def test_b7_a_cut_end_counts_once(proxy: Proxy, how: str, stage: Stage) -> None:
    end, outcome = _ENDS[how]
    batch = opened()
    add("a", batch=batch)
    close_batch(batch)
    (job,) = pop_jobs("orders")
    with suppress(OutcomeUnknown):
        losing(proxy, partial(end, "a", job.lease_token), nothing, pattern=COUNTING, stage=stage)
    assert counts() == {"total": 1, outcome: 1}


@pytest.mark.parametrize("stage", [Stage.UNSENT, Stage.COMMITTED])
def test_b7_a_cut_job_joins_once_or_not_at_all(proxy: Proxy, stage: Stage) -> None:
    batch = opened()
    call = partial(add, "a", delay=3600, batch=batch)
    assert losing(proxy, call, nothing, pattern=COMMIT, stage=stage).outcome is not None
    assert Message.objects.get(key="a").batch_id == batch
    close_batch(batch)
    assert delete_job("orders", "a")
    assert counts() == {"total": 1, "dropped": 1}


def test_b9_a_job_whose_answer_is_lost_has_joined_although_the_batch_is_closed(
    proxy: Proxy,
) -> None:
    batch = opened()

    def close() -> None:
        assert close_batch(batch)

    call = partial(add, "a", delay=3600, batch=batch)
    assert losing(proxy, call, close, pattern=COMMIT).outcome is not None
    assert delete_job("orders", "a")
    assert counts() == {"total": 1, "dropped": 1}
