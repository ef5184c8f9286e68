"""J3: once a DELETE was answered, no byte of the job's callback leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import pytest
from django.db import connections
from django.test import Client, override_settings

from delayed_queue.http.tokens import VERBS, create_token
from delayed_queue.models import Message
from tests.http.callbacks.delivering import TOPIC, add_many, callback_worker
from tests.http.callbacks.witness import Witness
from tests.support.processes import wait_until, worker
from tests.support.running import running

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

DELETERS = 6


def delete(token: str, job_ids: list[str]) -> dict[str, float]:
    """Delete the jobs over the API; return the time of each 204."""
    client = Client(headers={"Authorization": f"Bearer {token}"})
    answered = {}
    try:
        for job_id in job_ids:
            response = client.delete(f"/queue/v1/topics/{TOPIC}/jobs/{job_id}")
            if response.status_code == 204:
                answered[f"/hook/{job_id}"] = time.time()
            else:  # it was sent, and its row deleted
                assert response.status_code == 404
    finally:
        connections.close_all()
    return answered


@contextmanager
def processes(witness: Witness) -> Iterator[None]:
    """Two worker processes."""
    settings = {
        "DJANGO_SETTINGS_MODULE": "tests.http.callbacks.settings", "RECEIVERS": str(witness.port)
    }  # fmt: skip
    with ExitStack() as running_workers:
        for _ in range(2):
            given = worker("--callbacks-only", "--no-cron", "--no-reload", **settings)
            running_workers.enter_context(given)
        yield


@contextmanager
def in_this_process(witness: Witness) -> Iterator[None]:
    """A worker in a thread."""
    section = {
        "ALLOWED_NETWORKS": ["127.0.0.0/8"], "ALLOWED_PORTS": [witness.port], "ENABLED": True
    }  # fmt: skip
    with (
        override_settings(DELAYED_QUEUE={"CALLBACKS": section, "API": {"TOPICS": ["orders"]}}),
        running(callback_worker()),
    ):
        yield


@pytest.mark.parametrize(
    ("workers", "jobs"),
    [(in_this_process, 100), pytest.param(processes, 300, marks=pytest.mark.long)],
)
def test_j3_after_the_204_no_byte_of_it_leaves(workers: Any, jobs: int) -> None:
    """They fall due at once, while six clients delete them."""
    token = create_token("tests", verbs=VERBS, topics=["*"])
    delete(token, ["missing"])  # its answer takes long, since the test loads the API for it
    with Witness() as witness, workers(witness):
        # Enough messages that each worker has connections and has finished its first work.
        add_many("warm", 40, witness.url)
        wait_until(lambda: not Message.objects.exists())
        due_at = datetime.now(UTC) + timedelta(milliseconds=300)
        add_many("k", jobs, witness.url, runAt=due_at.isoformat())
        job_ids = [f"k{n}" for n in range(jobs)]
        Random(7).shuffle(job_ids)
        mine = [job_ids[first::DELETERS] for first in range(DELETERS)]
        wait_until(lambda: Message.objects.filter(lease_id__isnull=False).exists())
        with ThreadPoolExecutor(DELETERS) as pool:
            answers = list(pool.map(partial(delete, token), mine))
        wait_until(lambda: not Message.objects.exists())
    answered = {path: at for each in answers for path, at in each.items()}
    late = [
        at - answered[path]
        for path, times in witness.arrived.items()
        for at in times
        if at > answered.get(path, at)
    ]
    assert answered
    assert not late, f"{len(late)} of {len(answered)}, up to {max(late) * 1000:.0f} ms"
