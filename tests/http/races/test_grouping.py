"""Jobs added at the same time: in one transaction, and each for itself (J5)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import psycopg
import pytest

from delayed_queue.http.api import pool
from delayed_queue.http.api.jobs import add_together
from delayed_queue.http.jobs import adding
from delayed_queue.http.jobs.catalogue import configure_topic, create_topic
from delayed_queue.http.jobs.jobs import AddedJob, IfExists
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.http.store.topics import LOCK_JOBS
from delayed_queue.models import Message
from tests.http.jobs.support import found
from tests.http.races.jobs import hold_job
from tests.support.concurrency import together
from tests.support.processes import wait_until

Connection = psycopg.Connection[Any]
LONG: Final = 60_000
BLOCKED: Final = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0
"""


@pytest.fixture(autouse=True)
def new_process(transactional_db: None) -> Iterator[None]:
    create_topic("orders")
    yield
    pool.close()


class Requests:
    """Requests in one event loop, each of which adds a job."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def add(self, job_id: str, if_exists: str = "fail", **fields: Any) -> Future[AddedJob]:
        """Return the answer, once the job stands in line."""
        job = job_from({"jobId": job_id, "topic": "orders", **fields})
        place = ("default", "orders", IfExists(if_exists))
        answer = asyncio.run_coroutine_threadsafe(add_together(job, place), self._loop)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result()
        return answer

    def close(self) -> None:
        ending = self._loop.shutdown_asyncgens()
        asyncio.run_coroutine_threadsafe(ending, self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def requests() -> Iterator[Requests]:
    requests = Requests()
    yield requests
    requests.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers wait for a locked id without a timeout."""
    monkeypatch.setattr(adding, "TIMEOUT", LONG)


def outcomes(*answers: Future[AddedJob]) -> list[str | None]:
    return [each.result(30).outcome for each in answers]


def blocked(admin: Connection, number: int = 1) -> list[int]:
    """Return the sessions that wait for a lock, once there are ``number`` of them."""

    def pids() -> list[int]:
        return [pid for (pid,) in admin.execute(BLOCKED)]

    wait_until(lambda: len(pids()) == number)
    return pids()


def transactions(admin: Connection) -> Counter[str]:
    """Return the number of jobs that each transaction has stored."""
    return Counter(row[0] for row in admin.execute("SELECT xmin::text FROM delayed_queue"))


@pytest.mark.parametrize("if_exists", IfExists)
def test_what_gathers_while_one_is_written_is_written_in_one_transaction(
    patient: None, requests: Requests, other: Connection, admin: Connection, if_exists: IfExists
) -> None:
    hold_job(other, "first")
    first = requests.add("first", if_exists)
    blocked(admin)
    rest = [requests.add(f"k{n}", if_exists, body=n) for n in range(5)]
    other.execute("COMMIT")
    assert outcomes(first, *rest) == ["created"] * 6
    assert [each.result().job_id for each in rest] == [f"k{n}" for n in range(5)]
    assert sorted(transactions(admin).values()) == [1, 5]


def test_of_a_group_one_gets_an_id_and_the_others_their_own_answers(
    patient: None, requests: Requests, other: Connection, admin: Connection
) -> None:
    """A statement returns a row for one of two equal ids; the second id gets its own statement."""
    requests.add("taken").result(30)
    hold_job(other, "first")
    requests.add("first")
    blocked(admin)
    rest = [requests.add(each) for each in ("a", "taken", "b", "a", "a")]
    other.execute("COMMIT")
    assert outcomes(*rest) == ["created", None, "created", None, None]


def test_an_id_that_is_held_holds_up_nobody_else(requests, other, admin):
    """It blocks neither its own batch nor later ones."""
    hold_job(other, "held")
    held = requests.add("held")
    blocked(admin)
    assert outcomes(*[requests.add(f"k{n}") for n in range(8)]) == ["created"] * 8
    blocked(admin)
    assert outcomes(requests.add("later")) == ["created"]
    other.execute("COMMIT")
    assert outcomes(held) == ["created"]


def test_when_the_write_fails_each_is_written_for_itself(patient, requests, other, admin):
    hold_job(other, "first")
    first = requests.add("first")
    (writer,) = blocked(admin)
    other.execute(LOCK_JOBS, {"topic": "orders", "keys": ["second"]})
    second, *rest = [requests.add(name) for name in ("second", "k0", "k1", "k2")]
    admin.execute("SELECT pg_terminate_backend(%s)", [writer])
    wait_until(lambda: writer not in blocked(admin, 2))
    for pid in blocked(admin, 2):
        admin.execute("SELECT pg_terminate_backend(%s)", [pid])
    assert outcomes(*rest) == ["created"] * 3
    other.execute("COMMIT")
    assert outcomes(first, second) == ["created"] * 2
    assert Message.objects.count() == 5


def test_a_topic_that_changed_its_shards_is_noticed(patient, requests, other, admin):
    requests.add("known").result(30)
    hold_job(other, "first")
    first = requests.add("first")
    blocked(admin)
    rest = [requests.add(f"k{n}") for n in range(5)]
    admin.execute("UPDATE delayed_queue_topic SET shards = 3")
    other.execute("COMMIT")
    assert set(outcomes(first, *rest)) == {"created"}
    assert configure_topic("orders").shards == 3
    assert all(found(f"k{n}") for n in range(5))
    assert len({each.kind for each in Message.objects.filter(key__startswith="k")}) > 1


def test_many_loops_add_many_jobs_and_none_is_lost_or_doubled() -> None:
    def some(number: int) -> list[AddedJob]:
        # All of them add every third id.
        requests = Requests()
        asked = [requests.add(f"{n}" if n % 3 == 0 else f"{number}-{n}") for n in range(30)]
        answers = [each.result(30) for each in asked]
        requests.close()
        return answers

    answers = [each for found in together([partial(some, n) for n in range(6)]) for each in found]
    created = Counter(each.job_id for each in answers if each.outcome == "created")
    assert set(created.values()) == {1}
    assert len(created) == Message.objects.count() == 10 + 6 * 20
