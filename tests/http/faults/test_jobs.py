"""Calls of topics whose connection breaks, or whose answer is lost (J5, J8)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Final

import psutil
import pytest
from django.db import connections

from delayed_queue import DelayedQueue
from delayed_queue.exceptions import OutcomeUnknown
from delayed_queue.http.api.jobs import add_together
from delayed_queue.http.jobs.adding import delete_job, find_job
from delayed_queue.http.jobs.catalogue import forget_topics
from delayed_queue.http.jobs.consuming import bury_job
from delayed_queue.http.jobs.dead import dead_jobs
from delayed_queue.http.jobs.idempotency import KeptAnswer, once
from delayed_queue.http.jobs.jobs import IfExists
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.http.models import Topic
from delayed_queue.http.store.topics import LOCK_JOBS_OF_LETTERS, LOCK_TOPICS_OF_LETTERS
from delayed_queue.models import Message
from delayed_queue.queue.store.dead_letters import REDRIVE, family_params
from example_project.postgres import EmbeddedPostgres
from example_project.settings import database
from tests.db.faults.test_lost_connections import terminate
from tests.http.jobs.support import URL, add, popped
from tests.support.concurrency import calling, wait_until_blocked
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.servers import private_server

TOKEN: Final = "held-by-the-test"


@pytest.fixture
def scene(queue: DelayedQueue) -> None:
    """A topic with a dead job, a reserved one, and a ready one."""
    add("dead")
    bury_job("orders", "dead", popped().lease_token)
    add("reserved")
    popped()
    Message.objects.update(lease_id=TOKEN)
    add("ready")


def letter() -> int:
    return dead_jobs()[0].id


def answer() -> KeptAnswer:
    return KeptAnswer(202, str(add("new").outcome))


@pytest.mark.usefixtures("scene")
class TestSwallowedAnswers:
    """The server has committed it, or rolled it back; the caller gets a true answer."""

    @pytest.mark.parametrize("if_exists", IfExists)
    def test_a_job_that_is_written_with_others_is_stored_once(self, proxy, if_exists):
        proxy.swallow_answer("SELECT 1")
        try:
            place = ("default", "orders", if_exists)
            job = job_from({"jobId": "x", "topic": "orders"})
            added = asyncio.run(add_together(job, place))
        except OutcomeUnknown:
            assert if_exists is IfExists.FAIL
        else:
            assert added.outcome is not None
        assert proxy.swallowed_tag is None
        assert Message.objects.filter(key="x").count() == 1


def test_a_request_with_a_key_takes_five_round_trips(proxy: Proxy) -> None:
    """BEGIN and read, add, announce, store the answer, COMMIT."""
    once("scope", "warm", b"", lambda: KeptAnswer(202, str(add("warm").outcome)))
    before = proxy.rounds
    assert once("scope", "key", b"", answer) == KeptAnswer(202, "created")
    assert proxy.rounds - before <= 5


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize("step", ["the locks", "the redrive"])
def test_j5_a_redriver_that_dies_gives_up_the_jobs_it_held(other, admin, step):
    """It has changed nothing, for an update that waited for it."""
    params = {"ids": [letter()], "kind": None, "overwrite": False, "now": None, "most": 200}
    params |= family_params()
    other.execute("BEGIN")
    other.execute(LOCK_TOPICS_OF_LETTERS, params)
    other.execute(LOCK_JOBS_OF_LETTERS, params)
    if step == "the redrive":
        assert other.execute(REDRIVE, params).fetchall()
    with calling(lambda: add("dead", url=URL, if_exists="update").outcome) as update:
        wait_until_blocked(admin, update)
        terminate(admin, other.info.backend_pid)
        assert update.answer() == "created"
    assert Message.objects.get(key="dead").kind == "orders|callback"
    assert len(dead_jobs()) == 1


@pytest.fixture
def server(transactional_db: None) -> Iterator[EmbeddedPostgres]:
    """A server for this test behind Django's default alias."""
    found = connections["default"].settings_dict
    kept = dict(found)
    with private_server() as own:
        connections["default"].close()
        found |= database(own.socket_url)
        yield own
        connections["default"].close()
        found |= kept


@pytest.mark.slow
def test_j8_a_server_that_is_killed_after_the_answer_has_lost_nothing(server):
    """SIGKILL of all its processes, at once after the last answer.

    Statements prepared on the old connection are lost, and prepared again on the new one.
    """
    accepted = [add(str(n), url=URL if n % 2 else None, delay=n % 3) for n in range(300)]
    assert delete_job("orders", "0")
    token = popped().lease_token
    kill(server)
    connections["default"].close()
    server.start()
    forget_topics()

    assert {each.outcome for each in accepted} == {"created"}
    assert all(find_job("orders", str(n)) for n in range(1, 300))
    assert find_job("orders", "0") is None
    assert Message.objects.filter(lease_id=token).count() == 1
    assert Topic.objects.get().name == "orders"
    assert {add(f"later-{n}").outcome for n in range(10)} == {"created"}
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT sum(generic_plans) FROM pg_prepared_statements"
            " WHERE strpos(statement, 'INSERT INTO delayed_queue AS stored') > 0"
        )
        assert cursor.fetchone()[0] == 10


def kill(server: EmbeddedPostgres) -> None:
    pid = server.pid
    assert pid is not None
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for each in processes:
        os.kill(each.pid, signal.SIGKILL)
    wait_until(lambda: not any(psutil.pid_exists(each.pid) for each in processes))
