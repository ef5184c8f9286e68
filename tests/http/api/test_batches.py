"""Batches of jobs over HTTP (B8): opened, joined and closed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.jobs.catalogue import configure_topic
from delayed_queue.models import Message, StoredBatch
from tests.http.api.calls import JOB, errors_of, get, pop, post
from tests.http.jobs.support import URL

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("example_project.urls"),
    pytest.mark.usefixtures("new_process"),
]
THEN = {"topic": "reports", "jobId": "then", "body": {"day": 1}}
MakeClient = Callable[..., Client]


def opened(client: Client, **fields: Any) -> int:
    answer = post(client, "/batches", {"then": THEN, **fields})
    assert answer.status_code == 202, answer.content
    batch: int = answer.json()["id"]
    return batch


def join(client: Client, batch: int, job_id: str = "a", **fields: Any) -> Any:
    return post(client, "/jobs", JOB | {"jobId": job_id, "batch": batch, **fields})


def close(client: Client, batch: int) -> None:
    assert post(client, f"/batches/{batch}/close").status_code == 204


def finish(client: Client, count: int = 1) -> None:
    for each in pop(client, f"?count={count}"):
        path = f"/topics/orders/jobs/{each['jobId']}/finish"
        assert post(client, path, {"leaseToken": each["leaseToken"]}).status_code == 204


def popped_then(client: Client) -> Any:
    answer = post(client, "/topics/reports/pop")
    return answer.json()[0] if answer.status_code == 200 else None


class TestLife:
    def test_b8_then_follows_the_last_job(self, caller: Client):
        batch = opened(caller)
        assert join(caller, batch, "a").status_code == 202
        assert join(caller, batch, "b").status_code == 202
        assert get(caller, "/topics/orders/jobs/a")["batch"] == batch
        finish(caller, 2)
        assert popped_then(caller) is None
        close(caller, batch)
        then = popped_then(caller)
        assert (then["jobId"], then["body"]) == ("then", {"day": 1})
        assert then["batchCounts"] == {
            "id": batch, "total": 2, "done": 2, "dead": 0, "dropped": 0, "expired": 0
        }  # fmt: skip

    def test_b9_an_empty_batch_adds_then_at_its_end(self, caller: Client):
        batch = opened(caller)
        close(caller, batch)
        assert popped_then(caller)["batchCounts"]["total"] == 0

    def test_b8_then_may_have_a_url_a_time_and_a_group(self, caller: Client):
        then = THEN | {"url": URL, "runAt": "2030-01-01T00:00:00Z", "ladder": "1s"}
        batch = post(caller, "/batches", {"then": then | {"group": "g"}}).json()["id"]
        close(caller, batch)
        found = get(caller, "/topics/reports/jobs/then")
        assert (found["url"], found["group"], found["state"]) == (URL, "g", "delayed")

    def test_b7_a_then_whose_id_exists_updates_that_job(self, caller: Client):
        post(caller, "/jobs", THEN | {"body": 2})
        close(caller, opened(caller))
        assert popped_then(caller)["body"] == {"day": 1}
        assert popped_then(caller) is None

    def test_b8_a_batch_of_django_code_is_one_of_the_topic(self, caller: Client):
        orders = DelayedQueue("orders")
        batch = orders.batch(ScheduledMessage("then", 1))
        assert join(caller, batch.id).status_code == 202
        close(caller, batch.id)
        assert get(caller, "/topics/orders/jobs/a")["batch"] == batch.id

    def test_b8_a_topic_keeps_the_shard_of_a_then(self, caller: Client):
        configure_topic("reports", shards=2)
        then = THEN | {"jobId": "job-2"}  # of the second shard
        batch = post(caller, "/batches", {"then": then}).json()["id"]
        assert StoredBatch.objects.get().then_kind == "reports#1|json"
        with pytest.raises(InvalidConfiguration):
            configure_topic("reports", shards=1)
        close(caller, batch)
        assert popped_then(caller)["jobId"] == "job-2"


class TestMembersThatAdd:
    """A consumer that holds a job of a batch adds others, also after its end (B9)."""

    def test_b9_a_held_job_adds_jobs_to_a_closed_batch(self, caller: Client):
        batch = opened(caller)
        join(caller, batch)
        close(caller, batch)
        (held,) = pop(caller)
        assert held["batch"] == batch
        assert join(caller, batch, "b").json()["code"] == "batch_closed"
        lease = {"leaseToken": held["leaseToken"]}
        assert join(caller, batch, "b", **lease).status_code == 202
        path = "/topics/orders/jobs/a/finish"
        assert post(caller, path, lease).status_code == 204
        assert popped_then(caller) is None
        assert join(caller, batch, "c", **lease).json()["code"] == "batch_closed"
        finish(caller)
        assert popped_then(caller)["batchCounts"]["total"] == 2

    def test_b9_a_lease_holds_for_its_own_batch_only(self, caller: Client):
        first, second = opened(caller), opened(caller)
        join(caller, first)
        join(caller, second, "other", delay=60)
        close(caller, second)
        lease = {"leaseToken": pop(caller)[0]["leaseToken"]}
        assert join(caller, second, "b", **lease).json()["code"] == "batch_closed"
        jobs = [
            {**JOB, "jobId": f"j{n}", "batch": first, **each} for n, each in ((1, lease), (2, {}))
        ]
        answers = post(caller, "/jobs/bulk", jobs).json()["items"]
        assert [each["status"] for each in answers] == [202, 202]
        assert Message.objects.filter(batch_id=first).count() == 3

    def test_b13_a_lease_without_a_batch_is_refused(self, caller: Client):
        answer = post(caller, "/jobs", JOB | {"leaseToken": "a"})
        assert errors_of(answer) == {("body", "leaseToken")}


class TestBulk:
    @pytest.mark.parametrize("if_exists", ["fail", "update"])
    def test_b8_jobs_of_a_bulk_join(self, caller: Client, if_exists: str):
        first, second = opened(caller), opened(caller)
        batches = [first, first, None, second]
        jobs = [{**JOB, "jobId": f"j{n}", "batch": each} for n, each in enumerate(batches)]
        answer = post(caller, f"/jobs/bulk?ifExists={if_exists}", jobs)
        assert [each["status"] for each in answer.json()["items"]] == [202] * 4
        stored = Message.objects.order_by("key").values_list("batch_id", flat=True)
        assert list(stored) == batches

    def test_b13_each_item_has_its_own_answer(self, caller: Client):
        batch, closed = opened(caller), opened(caller)
        join(caller, closed, "z")
        close(caller, closed)
        jobs = [JOB | {"jobId": f"j{each}", "batch": each} for each in (batch, closed, 10**9)]
        items = post(caller, "/jobs/bulk", jobs).json()["items"]
        assert [each["status"] for each in items] == [202, 409, 400]
        assert items[1]["problem"]["code"] == "batch_closed"
        assert items[2]["problem"]["errors"][0]["path"] == "batch"
        assert set(Message.objects.values_list("key", flat=True)) == {"z", f"j{batch}"}


class TestExistingJobs:
    def test_b10_a_job_that_exists_joins_nothing(self, caller: Client):
        batch = opened(caller)
        post(caller, "/jobs", JOB)
        assert join(caller, batch).status_code == 409
        assert post(caller, "/jobs?ifExists=ignore", JOB | {"batch": batch}).status_code == 202
        close(caller, batch)
        assert popped_then(caller)["batchCounts"]["total"] == 0

    def test_b10_an_update_joins(self, caller: Client):
        batch = opened(caller)
        post(caller, "/jobs", JOB)
        post(caller, "/jobs?ifExists=update", JOB | {"body": 2, "batch": batch})
        close(caller, batch)
        finish(caller)
        assert popped_then(caller)["batchCounts"]["done"] == 1

    @pytest.mark.parametrize("more", [{"body": 2}, {"url": URL}])
    def test_b10_an_update_in_another_batch_leaves_the_first(
        self, caller: Client, more: dict[str, Any]
    ):
        first, second = opened(caller), opened(caller, then=THEN | {"jobId": "second"})
        join(caller, first)
        close(caller, first)
        answer = post(caller, "/jobs?ifExists=update", JOB | {"batch": second, **more})
        assert answer.status_code == 202
        assert popped_then(caller)["batchCounts"] == {
            "id": first, "total": 1, "done": 0, "dead": 0, "dropped": 1, "expired": 0
        }  # fmt: skip
        assert Message.objects.get(key="a").batch_id == second


class TestOnce:
    def test_b8_a_repeated_key_opens_one_batch(self, caller: Client):
        answers = [
            post(caller, "/batches", {"then": THEN}, **{"Idempotency-Key": "k"}) for _ in range(2)
        ]
        assert answers[0].content == answers[1].content
        assert answers[1]["Idempotency-Replayed"] == "true"
        assert StoredBatch.objects.count() == 1
        other = post(
            caller, "/batches", {"then": THEN | {"jobId": "x"}}, **{"Idempotency-Key": "k"}
        )
        assert other.status_code == 422

    def test_b8_a_repeated_job_joins_once_also_when_the_batch_has_finished(self, caller: Client):
        batch = opened(caller)
        job = JOB | {"batch": batch}
        first = post(caller, "/jobs", job, **{"Idempotency-Key": "k"})
        close(caller, batch)
        finish(caller)
        assert popped_then(caller)["batchCounts"]["total"] == 1
        again = post(caller, "/jobs", job, **{"Idempotency-Key": "k"})
        assert (again.status_code, again.content) == (202, first.content)
        assert not Message.objects.filter(key="a").exists()


class TestRefused:
    @pytest.mark.parametrize("way", ["/jobs", "/jobs?ifExists=update"])
    def test_b13_a_closed_batch_takes_no_job(self, caller: Client, way: str):
        batch = opened(caller)
        join(caller, batch)
        close(caller, batch)
        answer = post(caller, way, JOB | {"jobId": "b", "batch": batch})
        assert (answer.status_code, answer.json()["code"]) == (409, "batch_closed")
        assert list(Message.objects.values_list("key", flat=True)) == ["a"]

    @pytest.mark.parametrize("batch", [10**9, 0, -1, 2**63, "1", True, 1.5])
    def test_b13_an_unknown_batch_is_named(self, caller: Client, batch: Any):
        answer = join(caller, batch)
        assert (answer.status_code, errors_of(answer)) == (400, {("body", "batch")})
        assert not Message.objects.exists()

    @pytest.mark.parametrize(
        ("fields", "path"),
        [
            ({}, "then"), ({"then": 1}, "then"), ({"then": THEN | {"delay": 1}}, "then.delay"),
            ({"then": THEN | {"expiresIn": 1}}, "then.expiresIn"),
            ({"then": THEN | {"batch": 1}}, "then.batch"),
            ({"then": {"topic": "reports"}}, "then.jobId"),
            ({"then": THEN | {"url": "http://10.0.0.1/"}}, "then.url"),
            ({"then": THEN, "onDead": "stop"}, "onDead"), ({"then": THEN, "on": 1}, "on"),
        ],
    )  # fmt: skip
    def test_b13_a_batch_is_refused_by_the_field(
        self, caller: Client, fields: dict[str, Any], path: str
    ):
        answer = post(caller, "/batches", fields)
        assert (answer.status_code, errors_of(answer)) == (400, {("body", path)})
        assert not StoredBatch.objects.exists()


class TestRights:
    @pytest.fixture
    def batch(self, caller: Client) -> int:
        return opened(caller)

    @pytest.mark.parametrize(
        ("verbs", "topics"),
        [(("add", "read", "delete"), ("orders",)), (("consume",), ("reports", "orders"))],
    )
    def test_b8_others_do_not_learn_of_it(
        self, caller: Client, make_client: MakeClient, batch: int, verbs: Any, topics: Any
    ):
        other = make_client("other", verbs=verbs, topics=topics)
        ours, none = (post(other, f"/batches/{each}/close").status_code for each in (batch, 10**9))
        assert ours == none
        assert ours in {403, 404}
        assert StoredBatch.objects.get().closed_at is None

    def test_b8_nor_join_it(self, make_client: MakeClient, batch: int):
        other = make_client("other", verbs=("add",), topics=("orders",))
        answers = [join(other, each) for each in (batch, 10**9)]
        assert answers[0].content == answers[1].content
        assert answers[0].status_code == 400
        bulk = post(other, "/jobs/bulk", [JOB | {"batch": batch}]).json()
        assert bulk["items"][0]["status"] == 400
        assert not Message.objects.exists()

    def test_b8_nor_open_one_of_another_topic(self, make_client: MakeClient):
        other = make_client("other", verbs=("add",), topics=("orders",))
        assert post(other, "/batches", {"then": THEN}).status_code == 403
        assert not StoredBatch.objects.exists()

    def test_b8_a_queue_that_is_no_topic_has_no_batch_here(self, caller: Client):
        queue = DelayedQueue("x", codec="text")
        batch = queue.batch(ScheduledMessage("then", "x"))
        assert post(caller, f"/batches/{batch.id}/close").status_code == 404
        assert join(caller, batch.id).status_code == 400
        assert json.loads(join(caller, batch.id).content)["errors"][0]["path"] == "batch"
