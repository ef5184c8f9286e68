"""Each job call of the contract's table (J2, J3, J5, J6, J14)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client

from delayed_queue import DelayedQueue
from delayed_queue.models import Message
from tests.http.api.calls import JOB, errors_of, get, kill, pop, post
from tests.settings import EVERY_TOPIC

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.http.api.urls"),
    pytest.mark.usefixtures("new_process"),
]


class TestAdding:
    def test_a_job_is_accepted(self, caller: Client) -> None:
        response = post(caller, "/jobs", {**JOB, "body": {"n": 1}, "delay": 60})
        assert response.status_code == 202
        answer = response.json()
        assert answer.keys() == {"jobId", "topic", "state", "runAt"}
        assert (answer["state"], answer["runAt"][-1]) == ("delayed", "Z")
        assert get(caller, "/topics/orders/jobs/a")["runAt"] == answer["runAt"]

    def test_an_id_that_is_taken_is_a_conflict_unless_asked_otherwise(self, caller: Client) -> None:
        post(caller, "/jobs", JOB)
        refused = post(caller, "/jobs", JOB)
        assert (refused.status_code, refused.json()["code"]) == (409, "job_already_exists")
        assert post(caller, "/jobs?ifExists=ignore", {**JOB, "body": 1}).status_code == 202
        assert post(caller, "/jobs?ifExists=update", {**JOB, "body": 2}).status_code == 202
        assert pop(caller)[0]["body"] == 2

    @pytest.mark.parametrize(
        ("data", "path"),
        [
            ({}, "jobId"), ({**JOB, "topic": "a b"}, "topic"), ({**JOB, "delay": -1}, "delay"),
            ({**JOB, "delay": True}, "delay"), ({**JOB, "delay": "1 s"}, "delay"),
            ({**JOB, "runAt": "tomorrow"}, "runAt"), ({**JOB, "retry": -1}, "retry"),
            ({**JOB, "ladder": "1x"}, "ladder"), ({**JOB, "ttr": 0}, "ttr"),
            ({**JOB, "url": "ftp://example.org/"}, "url"), ({**JOB, "url": 5}, "url"),
            ({**JOB, "url": "http://169.254.169.254/latest"}, "url"),
            ({**JOB, "url": "http://example.org:22/"}, "url"), ({**JOB, "urll": "x"}, "urll"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_named_by_field(self, caller: Client, data: Any, path: str) -> None:
        response = post(caller, "/jobs", data)
        assert response.status_code == 400
        assert ("body", path) in errors_of(response)
        assert not Message.objects.exists()

    def test_a_topic_that_the_token_does_not_cover_is_forbidden(self, make_client: Any) -> None:
        client = make_client(topics=["other"])
        assert post(client, "/jobs", JOB).status_code == 403
        assert not Message.objects.exists()


class TestIdempotency:
    """J5."""

    def ask(self, client: Client, data: Any, key: str = "k", query: str = "") -> Any:
        return post(client, f"/jobs{query}", data, **{"Idempotency-Key": key})

    def test_the_same_request_gets_the_first_answer(self, caller: Client) -> None:
        first = self.ask(caller, {**JOB, "delay": 60})
        again = self.ask(caller, {"delay": 60, **JOB})  # in another order
        assert (again.status_code, again.content) == (202, first.content)
        assert again["Idempotency-Replayed"] == "true"
        assert "Idempotency-Replayed" not in first

    def test_a_refusal_is_an_answer_too(self, caller: Client) -> None:
        post(caller, "/jobs", JOB)
        assert self.ask(caller, JOB).status_code == 409
        caller.delete("/queue/v1/topics/orders/jobs/a")
        again = self.ask(caller, JOB)
        assert (again.status_code, again["Content-Type"]) == (409, "application/problem+json")

    def test_another_request_with_the_key_is_unprocessable(self, caller: Client) -> None:
        self.ask(caller, JOB)
        for other in (self.ask(caller, {**JOB, "delay": 1}),
                      self.ask(caller, JOB, query="?ifExists=update")):  # fmt: skip
            assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")

    def test_an_invalid_request_uses_no_key_up(self, caller: Client) -> None:
        assert self.ask(caller, {}).status_code == 400
        assert self.ask(caller, JOB).status_code == 202

    def test_another_callers_key_is_another(self, caller: Client, make_client: Any) -> None:
        self.ask(caller, JOB)
        assert self.ask(make_client("other"), {**JOB, "jobId": "b"}).status_code == 202

    @pytest.mark.parametrize("key", ["", "x" * 201, "é"])
    def test_other_keys_are_refused(self, caller: Client, key: str) -> None:
        response = self.ask(caller, JOB, key)
        assert (response.status_code, errors_of(response)) == (400, {("header", "Idempotency-Key")})

    def test_a_bulk_has_no_key(self, caller: Client) -> None:
        response = post(caller, "/jobs/bulk", [JOB], **{"Idempotency-Key": "k"})
        assert response.status_code == 400
        assert not Message.objects.exists()


class TestBulk:
    def test_each_item_is_answered_for_itself(self, make_client: Any) -> None:
        client = make_client(topics=["orders", "mails"])
        items = [JOB, JOB, {"jobId": "b"}, 5, {**JOB, "topic": "other"}, {**JOB, "topic": "mails"}]
        response = post(client, "/jobs/bulk", items)
        assert response.status_code == 202
        answers = response.json()["items"]
        assert [each["status"] for each in answers] == [202, 409, 400, 400, 403, 202]
        assert answers[0]["job"]["jobId"] == "a"
        assert answers[2]["problem"]["errors"][0]["path"] == "topic"

    def test_lines_are_answered_for_themselves(self, caller: Client) -> None:
        lines = b'{"jobId": "a", "topic": "t"}\n\n{broken\r\n{"jobId": "b", "topic": "t"}\n'
        response = post(caller, "/jobs/bulk", lines, content_type="application/x-ndjson")
        assert [each["status"] for each in response.json()["items"]] == [202, 400, 202]

    def test_items_have_the_limits_of_a_single_job(self, caller: Client, settings: Any) -> None:
        settings.DELAYED_QUEUE = {
            "API": {"TOPICS": EVERY_TOPIC, "BODY_BYTES": 1024, "BULK_ITEMS": 2, "DEPTH": 3}
        }
        jobs = [{**JOB, "body": "x" * 1100}, {**JOB, "jobId": "b", "body": [1]}]
        assert [each["status"] for each in post(caller, "/jobs/bulk", jobs).json()["items"]] == [
            413, 202,
        ]  # fmt: skip
        assert post(caller, "/jobs/bulk", [JOB] * 3).status_code == 413
        assert post(caller, "/jobs/bulk", [{**JOB, "body": [[[1]]]}]).status_code == 400

    @pytest.mark.parametrize("data", [b"{}", b"5", b""])
    def test_what_is_no_array_is_refused(self, caller: Client, data: bytes) -> None:
        assert post(caller, "/jobs/bulk", data).status_code == 400

    def test_an_empty_one_is_answered(self, caller: Client) -> None:
        assert post(caller, "/jobs/bulk", []).json() == {"items": []}

    def test_it_can_be_repeated(self, caller: Client) -> None:
        for _ in range(2):
            answer = post(caller, "/jobs/bulk?ifExists=ignore", [JOB, {**JOB, "jobId": "b"}])
            assert [each["status"] for each in answer.json()["items"]] == [202, 202]
        assert Message.objects.count() == 2


class TestJobs:
    @pytest.mark.parametrize("job_id", ["a", "ü ?#%&+;=", "a.b:c", "x" * 200, "\U0001f4a9"])
    def test_any_id_can_be_named_in_a_path(self, caller: Client, job_id: str) -> None:
        path = f"/topics/orders/jobs/{quote(job_id, safe='')}"
        post(caller, "/jobs", {**JOB, "jobId": job_id})
        assert get(caller, path)["jobId"] == job_id
        token = pop(caller)[0]["leaseToken"]
        assert post(caller, f"{path}/touch", {"leaseToken": token}).status_code == 204
        assert caller.delete(f"/queue/v1{path}").status_code == 204

    def test_a_key_of_django_code_may_have_slashes(self, caller: Client) -> None:
        DelayedQueue("orders").offer_or_update("a/b/c", 1)
        token = pop(caller)[0]["leaseToken"]
        path = "/topics/orders/jobs/a/b/c"
        assert get(caller, path)["state"] == "reserved"
        assert post(caller, f"{path}/finish", {"leaseToken": token}).status_code == 204

    def test_j3_deletion_is_answered_in_every_state_and_once(self, caller: Client) -> None:
        post(caller, "/jobs", {**JOB, "jobId": "delayed", "delay": 60})
        post(caller, "/jobs", {**JOB, "jobId": "reserved"})
        pop(caller)
        kill(caller, "dead")
        post(caller, "/jobs", {**JOB, "jobId": "ready"})
        for state in ("delayed", "reserved", "dead", "ready"):
            path = f"/topics/orders/jobs/{state}"
            assert get(caller, path)["state"] == state
            assert caller.delete(f"/queue/v1{path}").status_code == 204
            assert caller.delete(f"/queue/v1{path}").status_code == 404
            get(caller, path, 404)

    def test_a_topic_that_cannot_be_is_a_bad_request(self, caller: Client) -> None:
        response = caller.get("/queue/v1/topics/a%20b/jobs/a")
        assert (response.status_code, errors_of(response)) == (400, {("path", "topic")})


class TestTopics:
    def test_those_that_the_token_covers_are_listed(self, caller: Client, make_client: Any) -> None:
        for topic in ("orders", "mails"):
            post(caller, "/jobs", {**JOB, "topic": topic})
        assert [each["name"] for each in get(caller, "/topics")] == ["mails", "orders"]
        assert get(make_client("other", topics=["mai*"]), "/topics") == [
            {"name": "mails", "shards": 1}
        ]

    def test_counts_and_peeks(self, caller: Client) -> None:
        post(caller, "/jobs", {**JOB, "delay": 60})
        stats = get(caller, "/topics/orders/stats")
        assert (stats["delayed"], stats["ready"], stats["isPaused"]) == (1, 0, False)
        assert [each["jobId"] for each in get(caller, "/topics/orders/peek?state=delayed")] == ["a"]
        assert get(caller, "/topics/orders/peek") == []
        assert caller.get("/queue/v1/topics/orders/peek?state=x").status_code == 400

    def test_a_paused_one_hands_out_nothing(self, caller: Client) -> None:
        post(caller, "/jobs", JOB)
        assert post(caller, "/topics/orders/pause").json() == {"isPaused": True}
        assert get(caller, "/topics/orders/stats")["isPaused"] is True
        assert post(caller, "/topics/orders/pop").status_code == 204
        assert post(caller, "/topics/orders/resume").json() == {"isPaused": False}
        assert len(pop(caller)) == 1


ROUTES = {
    "add": [("POST", "/jobs"), ("POST", "/jobs/bulk"), ("POST", "/tasks"),
            ("POST", "/batches"), ("POST", "/batches/1/close")],
    "read": [("GET", "/topics"), ("GET", "/topics/orders/stats"), ("GET", "/topics/orders/peek"),
             ("GET", "/topics/orders/jobs/a"), ("GET", "/dead"), ("GET", "/dead/groups"),
             ("GET", "/attempts?job=a")],
    "delete": [("DELETE", "/topics/orders/jobs/a"), ("DELETE", "/dead/1")],
    "consume": [("POST", "/topics/orders/pop"), ("POST", "/topics/orders/jobs/a/finish"),
                ("POST", "/topics/orders/jobs/a/release"), ("POST", "/topics/orders/jobs/a/touch"),
                ("POST", "/topics/orders/jobs/a/bury")],
    "manage": [("POST", "/topics/orders/jobs/a/kick"), ("POST", "/topics/orders/kick"),
               ("POST", "/topics/orders/pause"), ("POST", "/topics/orders/resume"),
               ("POST", "/dead/1/replay")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "method", "path"), [(verb, *each) for verb, found in ROUTES.items() for each in found]
)
def test_j13_each_call_needs_its_verb(make_client, client, verb, method, path):
    others = make_client(verbs=ROUTES.keys() - {verb})
    assert others.generic(method, f"/queue/v1{path}", b"{}", "application/json").status_code == 403
    nobody = client.generic(method, f"/queue/v1{path}", b"{}", "application/json")
    assert nobody.status_code == 401


def test_every_operation_is_in_the_list_above(caller: Client) -> None:
    paths = get(caller, "/openapi.json")["paths"]
    described = {
        (method.upper(), path.removeprefix("/queue/v1"))
        for path, methods in paths.items()
        for method in methods
    }
    listed = {
        (method, path.replace("orders", "{topic}", 1).replace("/jobs/a", "/jobs/{job_id}")
         .replace("/dead/1", "/dead/{letter_id}").replace("/batches/1", "/batches/{batch_id}")
         .partition("?")[0])
        for found in ROUTES.values() for method, path in found
    }  # fmt: skip
    assert listed == described
