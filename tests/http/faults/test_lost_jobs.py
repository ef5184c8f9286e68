"""Jobs whose answer is lost: stored once, handled once, and answered truthfully (J5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from typing import Any, Final

import psycopg
import pytest
from django.test import Client

from delayed_queue.exceptions import OutcomeUnknown
from delayed_queue.http.jobs.adding import add_jobs
from delayed_queue.http.jobs.catalogue import create_topic
from delayed_queue.http.jobs.consuming import bury_job
from delayed_queue.http.jobs.dead import dead_jobs, kick_job, kick_topic, replay
from delayed_queue.http.jobs.jobs import IfExists, NewJob
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.http.tokens import VERBS, create_token
from delayed_queue.models import DeadLetter
from tests.http.api.servers import uvicorn
from tests.http.jobs.support import add, popped, server_now
from tests.support.aiming import COMMIT, Stage
from tests.support.losing import OFFER, REDRIVE, Consumer, losing
from tests.support.processes import wait_until
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.usefixtures("proxied"), pytest.mark.urls("tests.http.api.urls")]

KINDS: Final = ("orders|json", "orders|callback")


@pytest.fixture
def consumer(other: psycopg.Connection[Any]) -> Consumer:
    create_topic("orders")
    return Consumer(other, *KINDS)


def nothing() -> None:
    """No consumer runs meanwhile."""


def job(job_id: str = "a", **fields: Any) -> NewJob:
    return job_from({"jobId": job_id, "topic": "orders", **fields})


@pytest.mark.parametrize("if_exists", IfExists)
def test_j5_a_job_that_was_handled_before_its_answer_was_lost_is_not_added_again(
    consumer: Consumer, proxy: Proxy, if_exists: IfExists
) -> None:
    with pytest.raises(OutcomeUnknown):
        losing(proxy, lambda: add_jobs([job()], if_exists=if_exists), consumer.drain)

    consumer.drain()
    assert consumer.handled == {"a": 1}


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("if_exists", IfExists)
def test_j5_a_job_that_is_not_due_is_added_until_it_is_stored(consumer, proxy, if_exists, stage):
    call = lambda: add_jobs([job(delay=3600)], if_exists=if_exists)  # noqa: E731
    (added,) = losing(proxy, call, consumer.drain, stage=stage)

    is_update = if_exists is IfExists.UPDATE and stage is Stage.COMMITTED
    assert (added.outcome, added.state) == ("ignored" if is_update else "created", "delayed")
    consumer.drain(7_200_000)
    assert consumer.handled == {"a": 1}


def test_j5_an_id_that_was_taken_all_the_time_is_a_conflict(consumer, proxy):
    add("a")
    written_at = server_now().timestamp()
    wait_until(lambda: server_now().timestamp() > written_at + 0.05)

    (added,) = losing(proxy, lambda: add_jobs([job(body="other")]), nothing)

    assert added.outcome is None


def test_j5_of_several_jobs_those_that_are_stored_are_said_to_be(consumer, proxy):
    jobs = [job(each, delay=delay) for each, delay in (("a", 0), ("b", 3600), ("c", 0))]

    added = losing(proxy, lambda: add_jobs(jobs), nothing)

    assert [(each.outcome, each.state) for each in added] == [
        ("created", "ready"), ("created", "delayed"), ("created", "ready")
    ]  # fmt: skip
    consumer.drain(7_200_000)
    assert consumer.handled == {"a": 1, "b": 1, "c": 1}


def died(job_id: str) -> int:
    """Return the dead letter of a job."""
    add(job_id)
    bury_job("orders", job_id, popped().lease_token)
    return DeadLetter.objects.order_by("id").last().id  # type: ignore[union-attr]


REDRIVES: Final[dict[str, Callable[[], Any]]] = {
    "kick": lambda: kick_job("orders", "a"),
    "kick all": lambda: kick_topic("orders"),
    "replay": lambda: replay(dead_jobs()[-1].id),
}


@pytest.mark.parametrize("call", REDRIVES)
def test_j2_a_job_put_back_and_handled_is_not_put_back_again_nor_an_older_one(
    consumer: Consumer, proxy: Proxy, call: str
) -> None:
    older = died("a")
    DeadLetter.objects.filter(id=older).update(key="hidden")
    died("a")
    DeadLetter.objects.filter(id=older).update(key="a")

    with pytest.raises(OutcomeUnknown):
        losing(proxy, REDRIVES[call], consumer.drain, pattern=REDRIVE)

    consumer.drain()
    assert consumer.handled == {"a": 1}
    assert DeadLetter.objects.get().id == older


class TestOverHttp:
    """In this process, and against a server."""

    @staticmethod
    def post(token: str, **headers: str) -> Any:
        client = Client(headers={"Authorization": f"Bearer {token}"})
        data = {"jobId": "a", "topic": "orders", "body": 1}
        return client.post(
            "/queue/v1/jobs", json.dumps(data), content_type="application/json", headers=headers
        )

    def test_j5_a_lost_answer_is_503_and_says_what_to_do(self, consumer, proxy):
        token = create_token("caller", verbs=VERBS, topics=["*"])

        answer = losing(proxy, lambda: self.post(token), consumer.drain)

        assert (answer.status_code, answer.json()["code"]) == (503, "outcome_unknown")
        assert "Idempotency-Key" in answer.json()["detail"]
        assert "read the job" in answer.json()["detail"]
        assert answer["Content-Type"] == "application/problem+json"
        consumer.drain()
        assert consumer.handled == {"a": 1}

    @pytest.mark.parametrize("stage", Stage)
    @pytest.mark.parametrize("pattern", [OFFER, r"INSERT INTO delayed_queue_idempotency", COMMIT])
    def test_j5_with_a_key_the_answer_is_the_true_one(self, consumer, proxy, pattern, stage):
        if (pattern, stage) == (COMMIT, Stage.EXECUTED):
            stage = Stage.UNSENT  # a COMMIT is executed as it comes
        token = create_token("caller", verbs=VERBS, topics=["*"])

        answer = losing(
            proxy, lambda: self.post(token, Idempotency_Key="k"), consumer.drain,
            pattern=pattern, stage=stage,
        )  # fmt: skip

        assert answer.status_code == 202
        consumer.drain()
        assert consumer.handled == {"a": 1}

    def test_j5_with_a_key_the_next_try_gets_the_true_answer(self, consumer, proxy):
        """Also if the outage outlasts the server's retries."""
        token = create_token("caller", verbs=VERBS, topics=["*"])

        def handled_and_away() -> None:
            consumer.drain()
            proxy.refuse()

        first = losing(
            proxy, lambda: self.post(token, Idempotency_Key="k"), handled_and_away, pattern=COMMIT
        )
        proxy.accept()
        second = self.post(token, Idempotency_Key="k")

        assert (first.status_code, first.json()["code"]) == (503, "outcome_unknown")
        assert (second.status_code, second["Idempotency-Replayed"]) == (202, "true")
        consumer.drain()
        assert consumer.handled == {"a": 1}

    @pytest.mark.slow
    def test_j5_a_server_on_an_event_loop_tells_the_truth_too(self, consumer, proxy):
        token = create_token("caller", verbs=VERBS, topics=["*"])
        with uvicorn(url=proxy.url) as server:

            def post(job_id: str, **more: Any) -> tuple[int, dict[str, Any]]:
                connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
                body = json.dumps({"jobId": job_id, "topic": "orders", **more})
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                connection.request("POST", "/queue/v1/jobs", body, headers)
                with closing(connection), connection.getresponse() as response:
                    return response.status, json.loads(response.read())

            assert post("warm")[0] == 202
            lost = losing(proxy, lambda: post("a"), consumer.drain)
            kept = losing(proxy, lambda: post("b"), nothing)
            later = losing(proxy, lambda: post("c", delay=3600), nothing, stage=Stage.EXECUTED)

        assert (lost[0], lost[1]["code"]) == (503, "outcome_unknown")
        assert (kept[0], later[0]) == (202, 202)
        consumer.drain(7_200_000)
        assert consumer.handled == {"warm": 1, "a": 1, "b": 1, "c": 1}
