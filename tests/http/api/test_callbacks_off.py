"""Jobs with a url while callbacks are off: refused, not accepted and forgotten."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from delayed_queue.models import Message
from tests.http.api.calls import JOB, post
from tests.settings import EVERY_TOPIC

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.http.api.urls"),
    pytest.mark.usefixtures("new_process"),
]
CALLED = {**JOB, "url": "https://example.org/hook"}


def switched(settings: Settings, **callbacks: Any) -> None:
    settings.DELAYED_QUEUE = {"API": {"TOPICS": EVERY_TOPIC}, "CALLBACKS": callbacks}


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/jobs", {}), ("/jobs?ifExists=update", {}), ("/jobs", {"Idempotency-Key": "k"})],
)
def test_one_job_is_refused_with_what_to_do(
    caller: Client, settings: Settings, path: str, headers: dict[str, str]
) -> None:
    refused = post(caller, path, CALLED, **headers)
    assert (refused.status_code, refused.json()["code"]) == (503, "callbacks_off")
    assert "DELAYED_QUEUE['CALLBACKS']['ENABLED']" in refused.json()["detail"]
    assert not Message.objects.exists()
    switched(settings, ENABLED=True)
    assert post(caller, path, CALLED, **headers).status_code == 202


@pytest.mark.parametrize("media_type", ["application/json", "application/x-ndjson"])
def test_of_a_bulk_only_the_jobs_with_a_url_are_refused(caller: Client, media_type: str) -> None:
    jobs = [{**JOB, "jobId": "popped"}, CALLED]
    lines = "\n".join(map(json.dumps, jobs)).encode()
    data = lines if media_type.endswith("ndjson") else jobs
    items = post(caller, "/jobs/bulk", data, content_type=media_type).json()["items"]
    assert [each["status"] for each in items] == [202, 503]
    assert items[1]["problem"]["code"] == "callbacks_off"
    assert [each.key for each in Message.objects.all()] == ["popped"]


def test_a_caller_without_the_topic_learns_nothing_of_it(make_client: Any) -> None:
    assert post(make_client(topics=["others"]), "/jobs", CALLED).status_code == 403


@pytest.mark.parametrize(
    ("url", "setting"),
    [
        ("https://example.org:8443/", "ALLOWED_PORTS"), ("http://127.0.0.1/", "ALLOWED_NETWORKS"),
        ("http://localhost/", "ALLOWED_HOSTS"),
    ],
)  # fmt: skip
def test_the_error_of_a_refused_url_names_the_setting_that_allows_it(
    caller: Client, settings: Settings, url: str, setting: str
) -> None:
    (error,) = post(caller, "/jobs", {**JOB, "url": url}).json()["errors"]
    assert f"DELAYED_QUEUE['CALLBACKS']['{setting}']" in error["message"]
    allowed: dict[str, list[Any]] = {
        "ALLOWED_PORTS": [8443], "ALLOWED_NETWORKS": ["127.0.0.0/8"],
        "ALLOWED_HOSTS": ["localhost"],
    }  # fmt: skip
    switched(settings, ENABLED=True, **{setting: allowed[setting]})
    assert post(caller, "/jobs", {**JOB, "url": url}).status_code == 202
