"""Shutdown of waiting pops, at every point of a pop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import sleep

import pytest
from django.test import AsyncRequestFactory

from delayed_queue.http.api.waiting import Jobs, WaitingPops
from delayed_queue.http.jobs.consuming import Pop
from delayed_queue.models import Message
from tests.http.api.test_waiting import blocked_claims, is_listening
from tests.http.jobs.support import add
from tests.support.processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("new_process")]

POPS = "delayed-queue-pops"


@pytest.fixture
def waiting_pops() -> Iterator[WaitingPops]:
    made = WaitingPops()
    yield made
    made.close()


async def wait(pops: WaitingPops, pop: Pop) -> Jobs:
    return await pops.wait_for(AsyncRequestFactory().post("/"), pop, 60)


@contextmanager
def waiting(pops: WaitingPops, *wanted: Pop) -> Iterator[list[Future[Jobs]]]:
    """The pops, each on its own event loop; all wait."""
    with ThreadPoolExecutor(len(wanted)) as pool:
        waits = [pool.submit(asyncio.run, wait(pops, each)) for each in wanted]
        try:
            wait_until(lambda: pops.waiting == len(wanted))
            yield waits
        finally:
            pops.close()


def is_over() -> bool:
    return POPS not in {each.name for each in threading.enumerate()}


def test_all_who_wait_get_nothing_and_nothing_is_left(waiting_pops: WaitingPops):
    with waiting(waiting_pops, Pop("a"), Pop("a"), Pop("b")) as waits:
        waiting_pops.close()
        assert is_over()
        assert [each.result(60) for each in waits] == [[], [], []]


def test_who_waits_for_a_claim_gets_what_it_brings(waiting_pops, other):
    with ThreadPoolExecutor() as pool:
        other.execute("BEGIN")
        other.execute("LOCK TABLE delayed_queue_limit IN ACCESS EXCLUSIVE MODE")
        add()
        coming = pool.submit(asyncio.run, wait(waiting_pops, Pop("orders")))
        wait_until(lambda: blocked_claims(other) == 1)
        waiting_pops.drain()
        other.execute("ROLLBACK")
        (job,) = coming.result(20)
    assert (job.job_id, Message.objects.get().attempts) == ("a", 1)


def test_draining_again_and_again_ends_all_waits(waiting_pops, caplog):
    """As by a second signal: some waits are about to end by then."""
    with waiting(waiting_pops, *(Pop(f"topic-{n}") for n in range(10))) as waits:
        while not all(each.done() for each in waits):
            waiting_pops.drain()
            sleep(0)
        assert [each.result(20) for each in waits] == [[]] * 10
    assert caplog.text == ""


def test_closing_twice_is_harmless_and_a_later_wait_begins_anew(waiting_pops: WaitingPops):
    for _ in range(2):
        with waiting(waiting_pops, Pop("a")) as waits:
            waiting_pops.close()
            waiting_pops.close()
            assert waits[0].result(60) == []


def test_closing_while_a_connection_is_to_be_made_anew(waiting_pops, other, caplog):
    with waiting(waiting_pops, Pop("orders")) as waits:
        wait_until(lambda: is_listening(other))
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'delayed_queue_pops' AND datname = current_database()"
        )
        wait_until(lambda: "event=listener_lost" in caplog.text)
        waiting_pops.close()
        assert is_over()
        assert waits[0].result(60) == []
    wait_until(lambda: not is_listening(other))
