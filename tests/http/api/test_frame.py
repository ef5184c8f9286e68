"""Shared behaviour of all API calls: problems, limits, strict JSON (J13, J14)."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from delayed_queue.http.api.problems import MEDIA_TYPE
from tests.settings import EVERY_TOPIC

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.http.api.urls")]

ORDERS = "/orders/v1/orders"


def post(client: Client, body: Any, path: str = ORDERS, **more: Any) -> Any:
    raw = body if isinstance(body, bytes | str) else json.dumps(body)
    return client.post(path, raw, **{"content_type": "application/json", **more})


def problem(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status
    assert response.headers["Content-Type"] == MEDIA_TYPE
    body: dict[str, Any] = json.loads(response.content)
    assert body["status"] == status
    assert set(body) >= {"type", "title", "code"}
    return body


def test_a_good_request_is_answered(caller: Client):
    assert post(caller, {"topic": "a"}).status_code == 202


def test_each_wrong_field_is_named_with_400(caller: Client):
    body = {"body": 1, "items": [{"name": "a"}, {"delay": -1, "name": "secret", "more": 3}]}
    found = problem(post(caller, body), 400)
    assert [(each["in"], each["path"]) for each in found["errors"]] == [
        ("body", "topic"), ("body", "items[1].delay"),
    ]  # fmt: skip
    assert "secret" not in json.dumps(found)


def test_a_wrong_query_parameter_is_named_with_400(caller: Client):
    found = problem(caller.get("/orders/v1/topics/a/stats?limit=many"), 400)
    assert [(each["in"], each["path"]) for each in found["errors"]] == [("query", "limit")]


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b'{"topic": NaN}', b'{"topic": "a", "body": 1e400}', b"[1,]", b"\xff",
        b'{"topic": "a", "body": -Infinity}', b'{"topic": "a", "body": "\\u0000"}',
        b'{"topic": "a", "body": {"\\u0000": 1}}', b'{"topic": "a", "body": "\\ud800"}',
        b'{"topic": "a", "topic": "b"}', b'{"topic": "a", "body": [{"x": 1, "\\u0078": 2}]}',
        b'\xef\xbb\xbf{"topic": "a"}', b'{"topic": "a"} {}', b"[" * 200_000,
        b'{"topic": "a", "body": ' + b"[" * 33 + b"]" * 33 + b"}",
        b'{"topic": "a", "body": ' + b'{"a":' * 33 + b"1" + b"}" * 33 + b"}",
        b'{"topic": "a", "body": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_json_that_is_not_strict_is_refused(caller: Client, raw: bytes):
    problem(post(caller, raw), 400)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"topic": "a", "body": "\\\\u0000 : {[ \\" :"}',
        b'{"topic": "a", "body": {"x": 1, "y": {"x": ":"}, "z": [{"x": 1}, {"x": 2}]}}',
        b'{"topic": "a", "body": ' + b"[" * 31 + b"]" * 31 + b"}",
        b'{"topic": "a", "body": "\\ud83d\\ude00"}',
    ],
)
def test_json_that_only_looks_so_is_taken(caller: Client, raw: bytes):
    assert post(caller, raw).status_code == 202


def test_a_body_above_the_limit_is_refused(caller: Client, settings: Settings):
    largest = json.dumps({"topic": "a", "body": ""})
    filling = "x" * (256 * 1024 - len(largest))
    assert post(caller, {"topic": "a", "body": filling}).status_code == 202
    assert problem(post(caller, {"topic": "a", "body": filling + "x"}), 413)
    settings.DELAYED_QUEUE = {"API": {"TOPICS": EVERY_TOPIC, "BODY_BYTES": 1024}}
    assert problem(post(caller, {"topic": "a", "body": "x" * 1024}), 413)


def test_a_view_may_have_a_limit_and_types_of_its_own(caller: Client):
    raw = b"x" * 1024 * 1024
    response = post(caller, raw, "/orders/v1/bulk", content_type="application/x-ndjson")
    assert response.json() == {"bytes": len(raw)}
    assert problem(post(caller, raw, "/orders/v1/bulk", content_type="text/csv"), 415)


@pytest.mark.parametrize(
    "content_type", ["text/plain", "", "application/json; charset=latin-1", "application/xml"]
)
def test_other_media_types_are_refused(caller: Client, content_type: str):
    response = post(caller, {"topic": "a"}, content_type=content_type)
    assert problem(response, 415)
    assert response.headers["Accept"] == "application/json"


def test_a_charset_of_utf_8_is_taken(caller: Client):
    response = post(caller, {"topic": "a"}, content_type="application/json; charset=UTF-8")
    assert response.status_code == 202


@pytest.mark.parametrize("path", ["/orders/v1/nowhere", "/orders/v1/", "/queue/v1/nowhere"])
def test_an_unknown_path_is_a_problem(client: Client, path: str):
    assert problem(client.get(path), 404)["code"] == "not_found"


def test_another_method_is_a_problem_that_names_those_allowed(caller: Client):
    response = caller.put(ORDERS)
    problem(response, 405)
    assert response.headers["Allow"] == "POST"


def test_an_error_of_the_server_tells_nothing(client: Client, caplog: pytest.LogCaptureFixture):
    client.raise_request_exception = False
    with caplog.at_level(logging.ERROR, "delayed_queue"):
        response = client.get("/orders/v1/fails/bug")
    assert "secret" not in response.content.decode()
    assert problem(response, 500)["code"] == "internal_error"
    assert "error=ValueError" in caplog.text
    assert "in fail\n" in caplog.text
    assert "payload was secret" not in caplog.text.replace('raise ValueError("the payload', "")


def test_an_outage_of_the_database_is_a_503_with_retry_after(client: Client):
    response = client.get("/orders/v1/fails/database")
    assert problem(response, 503)["code"] == "database_unavailable"
    assert int(response.headers["Retry-After"]) >= 1
    assert b"secret" not in response.content


def test_a_raised_problem_is_the_answer(client: Client):
    found = problem(client.get("/orders/v1/fails/problem"), 409)
    assert found == {
        "type": "about:blank", "title": "Job already exists", "status": 409,
        "code": "job_already_exists", "detail": "It is there.",
    }  # fmt: skip


def test_no_csrf_token_is_asked_for(caller: Client):
    strict = Client(enforce_csrf_checks=True, headers=_headers_of(caller))
    assert post(strict, {"topic": "a"}).status_code == 202
    problem(strict.post("/orders/v1/nowhere"), 404)


def _headers_of(client: Client) -> dict[str, str]:
    return {"Authorization": client.defaults["HTTP_AUTHORIZATION"]}


def test_errors_are_documented_for_each_call(client: Client):
    schema = client.get("/orders/v1/openapi.json").json()
    assert schema["openapi"].startswith("3.1")
    operation = schema["paths"]["/orders/v1/orders"]["post"]
    assert set(operation["responses"]) == {
        "202", "400", "401", "403", "413", "415", "429", "500", "503"
    }  # fmt: skip
    assert MEDIA_TYPE in operation["responses"]["429"]["content"]
    assert schema["components"]["securitySchemes"] == {
        "BearerToken": {"type": "http", "scheme": "bearer"}
    }
