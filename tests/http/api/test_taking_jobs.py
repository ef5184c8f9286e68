"""Each call about leased and dead jobs (J5, J6)."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from delayed_queue.http.jobs.adding import find_job
from tests.http.api.calls import JOB, errors_of, get, kill, pop, post

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.http.api.urls"),
    pytest.mark.usefixtures("new_process"),
]


class TestConsuming:
    def test_the_life_of_a_job(self, caller: Client) -> None:
        post(caller, "/jobs", {**JOB, "body": {"n": 1}})
        (job,) = pop(caller, "?count=5&ttr=30")
        assert job.keys() == {
            "jobId", "body", "attempt", "group", "leaseToken", "leasedUntil", "batch",
            "batchCounts",
        }  # fmt: skip
        assert (job["jobId"], job["body"], job["attempt"]) == ("a", {"n": 1}, 1)
        path, lease = "/topics/orders/jobs/a", {"leaseToken": job["leaseToken"]}
        assert post(caller, f"{path}/touch", lease).status_code == 204
        assert post(caller, f"{path}/release", {**lease, "delay": 0}).status_code == 204
        lease = {"leaseToken": pop(caller)[0]["leaseToken"]}
        assert post(caller, f"{path}/finish", lease).status_code == 204
        assert post(caller, f"{path}/finish", lease).status_code == 404

    @pytest.mark.parametrize("call", ["finish", "release", "touch", "bury"])
    def test_a_stale_lease_is_a_conflict(self, caller: Client, call: str) -> None:
        post(caller, "/jobs", JOB)
        path = f"/topics/orders/jobs/a/{call}"
        answer = post(caller, path, {"leaseToken": "x"})
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_lease")
        wrong: list[Any] = [{}, {"leaseToken": 5}, {"leaseToken": "x", "Delay": 1}, [], "x"]
        for data in wrong:
            assert post(caller, path, data).status_code == 400

    @pytest.mark.parametrize("delay", [-1, True, "1x", 10**9, 10**400])
    def test_other_delays_are_refused(self, caller: Client, delay: Any) -> None:
        data = {"leaseToken": "x", "delay": delay}
        assert post(caller, "/topics/orders/jobs/a/release", data).status_code == 400

    @pytest.mark.parametrize(
        "query",
        ["count=0", "count=101", "count=x", "timeout=-1", "timeout=61", "timeout=nan", "ttr=0",
         "ttr=inf", "ttr=100000", "shard=-1", "shard=1", "shard=64"],
    )  # fmt: skip
    def test_other_wishes_are_refused(self, caller: Client, query: str) -> None:
        response = post(caller, f"/topics/orders/pop?{query}")
        assert response.status_code == 400
        assert errors_of(response) == {("query", query.partition("=")[0])}

    def test_a_pop_whose_parameters_are_in_a_body_is_refused(self, caller: Client) -> None:
        post(caller, "/jobs", JOB)
        response = post(caller, "/topics/orders/pop", {"count": 5})
        assert response.status_code == 400
        assert "in the query" in response.json()["detail"]
        assert len(pop(caller)) == 1


class TestDead:
    def test_j2_a_dead_job_is_listed_replayed_and_deleted(self, caller: Client) -> None:
        letter = kill(caller)
        (dead,) = get(caller, "/dead")["items"]
        assert (dead["id"], dead["body"], dead["retry"]) == (letter, {"n": 1}, 1)
        assert post(caller, f"/dead/{letter}/replay").json()["state"] == "ready"
        assert post(caller, f"/dead/{letter}/replay").status_code == 404
        caller.delete("/queue/v1/topics/orders/jobs/a")
        letter = kill(caller)
        assert caller.delete(f"/queue/v1/dead/{letter}").status_code == 204
        assert caller.delete(f"/queue/v1/dead/{letter}").status_code == 404

    def test_dead_jobs_are_listed_by_their_cause(self, caller: Client, make_client: Any) -> None:
        newest = [kill(caller, each) for each in ("a", "b")][-1]
        kill(caller, "x", topic="other")
        both = get(caller, "/dead/groups")["items"]
        (group,) = get(caller, "/dead/groups?topic=orders")["items"]

        assert [(each["topic"], each["count"]) for each in both] == [("other", 1), ("orders", 2)]
        assert (group["queue"], group["newestId"]) == ("orders|json", newest)
        assert (len(group["id"]), group["isCapped"]) == (16, False)
        narrow = make_client("narrow", topics=["other"])
        assert [each["topic"] for each in get(narrow, "/dead/groups")["items"]] == ["other"]
        assert narrow.get("/queue/v1/dead/groups?topic=orders").status_code == 403

    def test_j2_dead_jobs_are_kicked_one_by_one_or_all(self, caller: Client) -> None:
        for name in "abc":
            kill(caller, name)
        assert post(caller, "/topics/orders/jobs/a/kick").json() == {"kicked": 1}
        assert post(caller, "/topics/orders/jobs/a/kick").json() == {"kicked": 0}
        assert post(caller, "/topics/orders/jobs/x/kick").status_code == 404
        assert post(caller, "/topics/orders/kick?limit=1").json() == {"kicked": 1}
        assert post(caller, "/topics/orders/kick").json() == {"kicked": 1}

    def test_one_whose_job_lives_again_is_a_conflict(self, caller: Client) -> None:
        letter = kill(caller)
        post(caller, "/jobs?ifExists=update", JOB)
        assert post(caller, f"/dead/{letter}/replay").status_code == 409

    def test_pages_follow_each_other(self, caller: Client) -> None:
        for name in "abc":
            kill(caller, name)
        first = get(caller, "/dead?limit=2&topic=orders")
        rest = get(caller, f"/dead?limit=2&after={first['next']}")
        assert [each["jobId"] for each in first["items"] + rest["items"]] == ["a", "b", "c"]
        assert rest["next"] is None

    def test_those_of_other_topics_are_not_there(self, caller: Client, make_client: Any) -> None:
        letter = kill(caller)
        other = make_client("other", topics=["other"])
        assert get(other, "/dead")["items"] == []
        assert other.get("/queue/v1/dead?topic=orders").status_code == 403
        assert post(other, f"/dead/{letter}/replay").status_code == 404
        assert other.delete(f"/queue/v1/dead/{letter}").status_code == 404
        assert find_job("orders", "a") is not None

    @pytest.mark.parametrize("letter", ["0", "-1", "x", str(2**63)])
    def test_ids_that_cannot_be_are_refused(self, caller: Client, letter: str) -> None:
        assert post(caller, f"/dead/{letter}/replay").status_code == 400
