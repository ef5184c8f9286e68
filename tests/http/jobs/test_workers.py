"""J3, J7: topics whose jobs workers of Django code handle."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from delayed_queue import Envelope
from delayed_queue.http.jobs.adding import add_jobs, delete_job
from delayed_queue.http.jobs.catalogue import forget_topics
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import Message
from tests.http.jobs.support import add
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    forget_topics()
    yield
    forget_topics()


def test_j3_a_thousand_deletions_race_a_worker_of_four_threads() -> None:
    """Delivered before the 204, or never: a deletion may only overtake an attempt under way.

    Which deletions were answered is noted before the claim: what was claimed before the answer
    is the attempt that may end.
    """
    add_jobs([job_from({"jobId": str(n), "topic": "orders"}) for n in range(1000)])
    delivered: dict[str, int] = {}
    answered: set[str] = set()
    claimed_late: list[str] = []

    def handle(envelope: Envelope) -> None:
        delivered[envelope.key] = envelope.attempt
        # A claim is of at most two, so what was gone a hundred deliveries ago is late.
        if envelope.key in gone_long_ago():
            claimed_late.append(envelope.key)

    marks: list[set[str]] = []

    def gone_long_ago() -> set[str]:
        marks.append(set(answered))
        return marks[-100] if len(marks) > 100 else set()

    deleted: dict[str, bool] = {}
    handler = handler_of("orders", handle, batch_size=2)
    with running(worker_with(handler, concurrency=4)):
        for n in reversed(range(1000)):
            deleted[str(n)] = delete_job("orders", str(n))
            answered.add(str(n))
        wait_until(lambda: not Message.objects.exists())

    assert claimed_late == []
    # What was neither deleted nor delivered would be lost; each attempt was the only one.
    assert {key for key, was_there in deleted.items() if not was_there} <= delivered.keys()
    assert delivered.keys() | {key for key, there in deleted.items() if there} == deleted.keys()
    assert set(delivered.values()) <= {1}


def test_j7_a_topic_with_a_slow_handler_holds_up_no_other() -> None:
    is_slow, go_on = threading.Event(), threading.Event()
    quick: list[str] = []

    def slow(envelope: Envelope) -> None:
        is_slow.set()
        assert go_on.wait(20)

    handlers = [
        handler_of("slow", slow, batch_size=1),
        handler_of("quick", lambda envelope: quick.append(envelope.key)),
    ]
    add("s", "slow")
    with running(worker_with(*handlers, concurrency=2)):
        assert is_slow.wait(20)
        for n in range(50):
            add(str(n), "quick")
        wait_until(lambda: len(quick) == 50)
        assert not go_on.is_set()
        go_on.set()
        wait_until(lambda: not Message.objects.exists())
