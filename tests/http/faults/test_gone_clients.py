"""Pops of disconnected clients, under WSGI: they use up no attempt (J18)."""

from __future__ import annotations

import json
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import Any

import pytest
from django.db import connection

from delayed_queue.http.jobs.adding import add_job
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.http.tokens import VERBS, create_token
from delayed_queue.models import DeadLetter, Message
from tests.http.api.servers import LATER, Server, gunicorn
from tests.http.api.test_waiting import until_all_wait
from tests.support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

JOBS, ABANDONED = 10, 30


@pytest.fixture
def token(transactional_db: None) -> str:
    return create_token("consumer", verbs=VERBS, topics=["*"])


def asked(server: Server, token: str, topic: str, query: str) -> HTTPConnection:
    """Send a pop, and do not read the response."""
    connection = server.connect()
    headers = {"Authorization": f"Bearer {token}"}
    connection.request("POST", f"/queue/v1/topics/{topic}/pop?{query}", headers=headers)
    return connection


def answered(connection: HTTPConnection) -> list[dict[str, Any]]:
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return json.loads(body) if body else []


def add_jobs(topic: str = "orders", number: int = JOBS) -> None:
    for each in range(number):
        job = {"jobId": f"job-{each}", "topic": topic, "ladder": "1s 1s"}
        add_job(job_from(job))


def all_are_there_for_who_waits(server: Server, token: str) -> None:
    jobs = answered(asked(server, token, "orders", "count=10&timeout=10"))
    assert [each["attempt"] for each in jobs] == [1] * JOBS
    assert not DeadLetter.objects.exists()


def test_clients_that_left_before_their_turn_claim_nothing(token: str) -> None:
    with gunicorn() as server, ExitStack() as opened:  # one request at a time
        first = asked(server, token, "others", "timeout=60")
        opened.callback(first.close)
        wait_until(a_pop_waits)
        for _ in range(ABANDONED):
            asked(server, token, "orders", "ttr=1").close()
        add_jobs()
        add_jobs("others", 1)
        assert len(answered(first)) == 1
        all_are_there_for_who_waits(server, token)


def a_pop_waits() -> bool:
    """The server, which takes one request at a time, listens for a topic."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT FROM pg_stat_activity "
            f"WHERE application_name = 'delayed_queue_pops' AND state = 'idle' AND {LATER}"
        )
        return cursor.fetchone() is not None


def abandoned(server: Server, token: str, number: int) -> None:
    clients = [asked(server, token, "orders", "timeout=60&ttr=1") for _ in range(number)]
    until_all_wait(server, number)
    for each in clients:
        each.close()
    until_all_wait(server, 0)


def test_clients_that_leave_give_up_thread_and_place_and_use_up_no_attempt(token: str) -> None:
    """While they wait, and as jobs arrive."""
    with gunicorn("--threads", "4") as server:
        for _ in range(ABANDONED // 3):
            abandoned(server, token, 3)
        clients = [asked(server, token, "orders", "timeout=60&ttr=1") for _ in range(3)]
        until_all_wait(server, 3)
        for each in clients:
            each.close()
        add_jobs()
        until_all_wait(server, 0)
        all_are_there_for_who_waits(server, token)
        assert set(Message.objects.values_list("attempts", flat=True)) == {1}
