"""Single fields come once, unknown names are refused (J19), numbers keep digits (J20)."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.http.api.bodies import keeps_digits, parse
from delayed_queue.http.api.problems import Problem
from delayed_queue.models import Message
from tests.http.api.calls import JOB, errors_of, pop, post

in_process = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("example_project.urls"),
    pytest.mark.usefixtures("new_process"),
]
V1 = "/queue/v1"
CALLS = [
    ("POST", f"{V1}/jobs", "ifExists=ignore"), ("POST", f"{V1}/jobs/bulk", "ifExists=update"),
    ("GET", f"{V1}/topics/orders/peek", "count=1"),
    ("GET", f"{V1}/topics/orders/peek", "state=dead"),
    ("POST", f"{V1}/topics/orders/pop", "count=1"),
    ("POST", f"{V1}/topics/orders/pop", "timeout=0"),
    ("POST", f"{V1}/topics/orders/pop", "ttr=5"),
    ("POST", f"{V1}/topics/orders/pop", "shard=0"),
    ("POST", f"{V1}/topics/orders/kick", "limit=1"), ("GET", f"{V1}/dead", "topic=orders"),
    ("GET", f"{V1}/dead/groups", "topic=orders"),
    ("GET", f"{V1}/attempts?job=a", "topic=orders"), ("GET", "/v1/notifications", "limit=3"),
]  # fmt: skip
UNKNOWN = [
    *dict.fromkeys(each[:2] for each in CALLS), ("POST", f"{V1}/tasks"), ("GET", f"{V1}/topics"),
    ("GET", f"{V1}/topics/orders/stats"), ("POST", f"{V1}/topics/orders/pause"),
    ("GET", f"{V1}/topics/orders/jobs/a"), ("DELETE", f"{V1}/topics/orders/jobs/a"),
    ("POST", f"{V1}/topics/orders/jobs/a/finish"), ("POST", f"{V1}/dead/1/replay"),
    ("POST", "/v1/notifications"), ("POST", "/v1/notifications/bulk"), ("POST", "/v1/suppressions"),
    ("DELETE", "/v1/notifications/00000000-0000-0000-0000-000000000000"),
]  # fmt: skip


def call(client: Client, method: str, path: str, query: str) -> Any:
    joined = f"{path}{'&' if '?' in path else '?'}{query}"
    return client.generic(method, joined, json.dumps(JOB), content_type="application/json")


class TestQueries:
    pytestmark = in_process

    @pytest.mark.parametrize(("method", "path", "query"), CALLS)
    def test_a_doubled_parameter_is_refused_by_its_name(self, caller, method, path, query):
        answer = call(caller, method, path, f"{query}&{query}")
        assert (answer.status_code, errors_of(answer)) == (400, {("query", query.split("=")[0])})
        assert not Message.objects.exists()

    @pytest.mark.parametrize(("method", "path"), UNKNOWN)
    def test_an_unknown_parameter_is_refused_by_its_name(self, caller, method, path):
        answer = call(caller, method, path, "nosuch=1")
        assert (answer.status_code, errors_of(answer)) == (400, {("query", "nosuch")})

    def test_what_was_meant_is_said(self, caller: Client) -> None:
        (error,) = call(caller, "GET", f"{V1}/dead", "topik=orders").json()["errors"]
        assert "Did you mean 'topic'?" in error["message"]

    def test_very_many_of_them_are_not_all_named(self, caller: Client) -> None:
        query = "&".join(f"topik{n}=1" for n in range(900))
        assert len(call(caller, "GET", f"{V1}/dead", query).json()["errors"]) == 20

    def test_a_list_may_have_many(self, caller: Client) -> None:
        assert call(caller, "GET", "/v1/notifications", "status=FAILED&status=EXPIRED").json() == {
            "items": [], "next": None
        }  # fmt: skip

    def test_a_caller_without_a_token_learns_of_no_parameter(self, client: Client) -> None:
        assert call(client, "GET", f"{V1}/dead", "nosuch=1").status_code == 401


REFUSED = [
    "12345678901234567.89", "1e-400", "-1E-999999999999999999999", "0.1234567890123456789",
    "9007199254740993.0", "1e400", "123456789012345678e-1",
]  # fmt: skip
KEPT = [
    "0.1", "-0.0", "1.10", "0e-999999999999999999999", "1e22", "123456789012345.6", "5e-324",
    "0.30000000000000004", "1.7976931348623157e308", "12345678901234567890", "1E5",
]  # fmt: skip


class TestNumbers:
    pytestmark = in_process

    @pytest.mark.parametrize("number", REFUSED)
    @pytest.mark.parametrize("path", [f"{V1}/jobs", "/v1/notifications"])
    def test_one_that_would_lose_digits_is_refused(self, caller, path, number):
        raw = f'{{"jobId": "a", "topic": "orders", "body": [{number}]}}'
        answer = caller.post(path, raw, content_type="application/json")
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed_json")

    @pytest.mark.parametrize("number", KEPT)
    def test_others_arrive_as_they_were(self, caller: Client, number: str) -> None:
        raw = f'{{"jobId": "a", "topic": "orders", "body": {{"n": {number}, "t": "1e-400"}}}}'
        assert post(caller, "/jobs", raw.encode()).status_code == 202
        answer = pop(caller)[0]
        assert answer["body"]["t"] == "1e-400"
        assert Decimal(str(answer["body"]["n"])) == Decimal(number.replace("9" * 21, "9"))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=None))
def test_a_number_that_is_taken_is_read_as_it_was_written(number: Decimal) -> None:
    text = f"{number:E}" if abs(number.adjusted()) > 30 else f"{number:f}"
    try:
        value = parse(text.encode(), 32)
    except Problem:
        assert not keeps_digits(text) or abs(number) > Decimal(10) ** 308
        return
    assert Decimal(repr(value)) == Decimal(text)
