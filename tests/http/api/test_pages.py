"""Probes, metrics and the description."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client

from delayed_queue import DelayedQueue
from tests.http.api.test_frame import problem

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.http.api.urls")]


def test_the_process_is_healthy_whatever_the_database_does(client, django_assert_num_queries):
    with django_assert_num_queries(0):
        response = client.get("/queue/healthz")
    assert (response.status_code, response.headers["Cache-Control"]) == (200, "no-store")


@pytest.mark.django_db(transaction=True)
def test_readiness_asks_for_the_tables_of_this_version(client: Client):
    assert client.get("/queue/readyz").status_code == 200
    rename = "UPDATE django_migrations SET app = %s WHERE app = %s"
    names = ["another_app", "delayed_queue_http"]
    with connection.cursor() as cursor:
        cursor.execute(rename, names)
    try:
        assert problem(client.get("/queue/readyz"), 503)["code"] == "schema_mismatch"
    finally:
        with connection.cursor() as cursor:
            cursor.execute(rename, names[::-1])


@pytest.mark.parametrize("path", ["healthz", "readyz", "metrics", "v1/openapi.json"])
def test_they_are_read_only(client: Client, path: str):
    response = client.post(f"/queue/{path}")
    problem(response, 405)
    assert response.headers["Allow"] == "GET, HEAD"


class TestMetrics:
    def test_queues_are_exposed_by_a_verb_of_its_own(self, make_client: Callable[..., Client]):
        DelayedQueue("orders").offer_or_update("a", 1)
        text = make_client("all", verbs=["metrics"]).get("/queue/metrics").content.decode()
        assert 'delayed_queue_messages{kind="orders|json",queue="orders",state="due"} 1.0' in text

    def test_others_are_refused(self, client: Client, make_client: Callable[..., Client]):
        assert client.get("/queue/metrics").status_code == 401
        others = make_client("others", verbs=["add", "read", "delete", "consume", "manage"])
        assert others.get("/queue/metrics").status_code == 403


def test_described_paths_are_those_it_is_mounted_at(client: Client):
    paths = client.get("/orders/v1/openapi.json").json()["paths"]
    assert {each[: len("/orders/v1/")] for each in paths} == {"/orders/v1/"}
