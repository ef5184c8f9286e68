"""Access by token, and its limits (J13)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
import time_machine
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.test import AsyncClient, Client
from pytest_django import Settings

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.api import pool
from delayed_queue.http.api.auth import MAX_CACHED, cache
from delayed_queue.http.apps import check_api
from delayed_queue.http.models import ApiToken
from delayed_queue.http.tokens import Grant, create_token, digest_of, find_grant, revoke_token
from tests.http.api.test_frame import post, problem
from tests.settings import EVERY_TOPIC

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.http.api.urls")]

Clients = Callable[..., Client]
STATS = "/orders/v1/topics/{}/stats"


def test_a_token_is_kept_as_a_hash_only():
    token = create_token("a", verbs=["add"], topics=["*"])
    row = ApiToken.objects.get()
    assert row.digest == digest_of(token)
    assert token.startswith(row.prefix)
    assert len(row.prefix) < 10
    assert len(token) == len("dq_") + 43, "256 bits"
    assert token not in str(ApiToken.objects.values())


@pytest.mark.parametrize(
    "header",
    [
        {}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "}, {"Authorization": "x"},
        {"Authorization": "Basic YTpi"}, {"Authorization": f"Bearer dq_{'x' * 43}"},
        {"Authorization": "Bearer \xff"}, {"Authorization": f"Bearer {'x' * 10_000}"},
    ],
)  # fmt: skip
def test_without_a_good_token_it_is_401(client: Client, header: dict[str, str]):
    response = client.get(STATS.format("a"), headers=header)
    assert problem(response, 401)["code"] == "unauthorized"
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


def test_a_token_counts_in_the_header_only(client: Client):
    token = create_token("a", verbs=["read"], topics=["*"])
    assert client.get(STATS.format("a"), {"token": token, "access_token": token}).status_code == 401
    client.cookies["Authorization"] = f"Bearer {token}"
    assert client.get(STATS.format("a")).status_code == 401


def test_the_scheme_is_not_case_sensitive(client: Client):
    token = create_token("a", verbs=["read"], topics=["*"])
    headers = {"Authorization": f"bearer {token}"}
    assert client.get(STATS.format("a"), headers=headers).status_code == 200


def test_a_verb_that_is_not_granted_is_403(make_client: Clients):
    caller = make_client(verbs=["read"])
    assert caller.get(STATS.format("a")).status_code == 200
    assert problem(post(caller, {"topic": "a"}), 403)["code"] == "forbidden"


def test_topics_are_names_or_beginnings(make_client: Clients):
    caller = make_client(topics=["mail", "orders.*"])
    for topic, status in (("mail", 200), ("mails", 403), ("orders.eu", 200), ("orders", 403)):
        assert caller.get(STATS.format(topic)).status_code == status
        expected = 202 if status == 200 else 403
        assert post(caller, {"topic": topic}).status_code == expected


@pytest.mark.parametrize(
    "state", [{"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, {"disabled_at": datetime.now(UTC)}]
)
def test_a_token_out_of_force_is_401(make_client: Clients, state: dict[str, Any]):
    caller = make_client()
    ApiToken.objects.update(**state)
    assert caller.get(STATS.format("a")).status_code == 401


def test_a_revocation_is_obeyed_when_the_cache_is_over(make_client: Clients, settings: Settings):
    caller = make_client("a")
    assert caller.get(STATS.format("a")).status_code == 200
    assert revoke_token("a")
    assert caller.get(STATS.format("a")).status_code == 200, "cached for some seconds"
    settings.DELAYED_QUEUE = {"API": {"TOPICS": EVERY_TOPIC, "TOKEN_CACHE": timedelta(0)}}
    assert caller.get(STATS.format("a")).status_code == 401


def test_a_known_token_costs_no_query(make_client, django_assert_num_queries):
    caller = make_client()
    with django_assert_num_queries(2):  # the read, and the update of its last use
        caller.get(STATS.format("a"))
    with django_assert_num_queries(0):
        caller.get(STATS.format("a"))
    cache.clear()
    with django_assert_num_queries(1):
        caller.get(STATS.format("a"))


def test_what_has_no_tokens_shape_costs_no_query(client, django_assert_num_queries):
    with django_assert_num_queries(0):
        client.get(STATS.format("a"), headers={"Authorization": "Bearer guess"})


def test_the_cache_is_bounded_and_keeps_no_tokens(make_client: Clients):
    cache.update({str(number): (0.0, Grant("a")) for number in range(MAX_CACHED)})
    token = str(make_client().defaults["HTTP_AUTHORIZATION"]).removeprefix("Bearer ")
    make_client("b").get(STATS.format("a"))
    Client(headers={"Authorization": f"Bearer {token}"}).get(STATS.format("a"))
    assert len(cache) == 2
    assert digest_of(token) in cache


def test_a_rate_that_is_used_up_is_429_with_retry_after(make_client: Clients):
    caller, another = make_client("a", rate=0.5, burst=3), make_client("b")
    answers = [caller.get(STATS.format("a")) for _ in range(4)]
    assert [each.status_code for each in answers] == [200, 200, 200, 429]
    assert problem(answers[-1], 429)["code"] == "too_many_requests"
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 3
    assert another.get(STATS.format("a")).status_code == 200


def test_tokens_without_a_rate_have_the_settings(make_client: Clients, settings: Settings):
    settings.DELAYED_QUEUE = {"API": {"TOPICS": EVERY_TOPIC, "RATE": 0.5, "BURST": 1}}
    caller = make_client()
    assert [caller.get(STATS.format("a")).status_code for _ in range(2)] == [200, 429]


def test_public_means_that_no_token_is_needed(client: Client, settings: Settings):
    settings.DELAYED_QUEUE = {"API": {"TOPICS": EVERY_TOPIC, "PUBLIC": True}}
    assert client.get(STATS.format("a")).status_code == 200
    wrong = {"Authorization": "Bearer wrong"}
    assert client.get(STATS.format("a"), headers=wrong).status_code == 401


@pytest.mark.parametrize(
    ("api", "debug", "ids"),
    [
        ({}, False, []),
        ({"PUBLIC": True}, False, ["delayed_queue.E004"]),
        ({}, True, []),
        ({"PUBLIK": True}, True, []),
    ],
)
def test_a_deployment_must_be_closed(settings, api, debug, ids):
    settings.DELAYED_QUEUE, settings.DEBUG = {"API": api}, debug
    assert [each.id for each in check_api()] == ids


class TestCommand:
    def test_a_token_is_printed_once_and_works(self, client: Client):
        token = call(
            "create", "shop", "--verb", "read", "--topic", "orders.*", "--valid-for", "30d"
        )
        headers = {"Authorization": f"Bearer {token.strip()}"}
        assert client.get(STATS.format("orders.eu"), headers=headers).status_code == 200
        assert client.get(STATS.format("mail"), headers=headers).status_code == 403
        listed = call("list")
        assert token.strip() not in listed
        assert re.search(r"shop +dq_.* in force +read +orders\.\* +2", listed)

    def test_a_revoked_token_is_listed_as_such(self):
        call("create", "shop", "--verb", "read", "--topic", "*")
        call("revoke", "shop")
        assert "revoked" in call("list")
        with pytest.raises(CommandError, match="no active token"):
            call("revoke", "shop")

    def test_an_expired_token_is_listed_as_such(self):
        call("create", "shop", "--verb", "read", "--topic", "*", "--valid-for", "1d")
        ApiToken.objects.update(expires_at=datetime(2020, 1, 1, tzinfo=UTC))
        assert "expired" in call("list")

    def test_topics_are_not_left_out(self):
        with pytest.raises(CommandError, match="--topic"):
            call("create", "shop", "--verb", "read")
        assert not ApiToken.objects.exists()

    def test_names_are_used_once(self):
        call("create", "shop", "--verb", "read", "--topic", "*")
        with pytest.raises(CommandError, match="already"):
            call("create", "shop", "--verb", "read", "--topic", "*")

    @pytest.mark.parametrize("days", [-40, 40])
    def test_the_clock_of_the_database_ends_it(self, days: int):
        with time_machine.travel(datetime.now(UTC) + timedelta(days=days)):
            token = call(
                "create", "shop", "--verb", "read", "--topic", "*", "--valid-for", "1d"
            ).strip()
            assert "in force" in call("list")
        assert find_grant(token) is not None
        row = ApiToken.objects.get()
        assert row.expires_at is not None
        assert row.expires_at - row.created_at <= timedelta(days=1)
        assert abs(row.created_at - datetime.now(UTC)) < timedelta(hours=1)


def call(*arguments: str) -> str:
    out = StringIO()
    call_command("queuetoken", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"name": "x" * 101}, {"name": "a\n"}, {"verbs": []}, {"verbs": ["pop"]},
        {"topics": []}, {"topics": ["a*b"]}, {"topics": [""]}, {"topics": ["a\0"]},
        {"rate": 0}, {"rate": float("nan")}, {"burst": 0},
    ],
)  # fmt: skip
def test_a_token_is_described_rightly(wrong: dict[str, Any]):
    with pytest.raises(InvalidConfiguration):
        create_token(**{"name": "a", "verbs": ["add"], "topics": ["*"], **wrong})
    assert not ApiToken.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("method", "path", "status"), [("get", "stats", 200), ("post", "pop", 204)]
)
def test_both_kinds_of_views_are_guarded_under_asgi(method: str, path: str, status: int):
    token = create_token("a", verbs=["read", "consume"], topics=["a"])
    headers, client = {"Authorization": f"Bearer {token}"}, AsyncClient()

    async def statuses() -> list[int]:
        ask, url = getattr(client, method), "/queue/v1/topics/{}/{}"
        return [
            (await ask(url.format("a", path), headers=headers)).status_code,
            (await ask(url.format("b", path), headers=headers)).status_code,
            (await ask(url.format("a", path))).status_code,
        ]

    try:
        assert async_to_sync(statuses)() == [status, 403, 401]
    finally:
        pool.close()
