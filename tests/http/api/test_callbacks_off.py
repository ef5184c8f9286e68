"""Jobs with a url while callbacks are off: refused, not accepted and forgotten."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from delayed_queue.exceptions import CallbacksOff
from delayed_queue.http.jobs.adding import add_job, add_jobs
from delayed_queue.http.jobs.dead import kick_job, kick_topic, replay
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import DeadLetter, Message
from tests.http.api.calls import JOB, post
from tests.settings import EVERY_TOPIC
from tests.support.factories import DeadLetterFactory

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.http.api.urls"),
    pytest.mark.usefixtures("new_process"),
]
CALLED = {**JOB, "url": "https://example.org/hook"}


def switched(settings: Settings, **callbacks: Any) -> None:
    settings.DELAYED_QUEUE = {"API": {"TOPICS": EVERY_TOPIC}, "CALLBACKS": callbacks}


@pytest.fixture(autouse=True)
def _callbacks_off(callbacks_on: None, settings: Settings) -> None:
    switched(settings, ENABLED=False)


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/jobs", {}), ("/jobs?ifExists=update", {}), ("/jobs", {"Idempotency-Key": "k"})],
)
def test_one_job_is_refused_with_what_to_do(caller, settings, path, headers):
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


SAID = "The operator can set DELAYED_QUEUE['CALLBACKS']['ENABLED'] to True"


def test_python_refuses_them_and_stores_none_of_the_others() -> None:
    jobs = [job_from({**JOB, "jobId": "popped"}), job_from(CALLED)]
    with pytest.raises(CallbacksOff, match=re.escape(SAID)):
        add_jobs(jobs)
    assert not Message.objects.exists()


@pytest.fixture
def dead(settings: Settings) -> DeadLetter:
    """Return a dead job with a url, added while callbacks were on."""
    switched(settings, ENABLED=True)
    add_job(job_from(CALLED))
    message = Message.objects.get()
    message.delete()
    switched(settings, ENABLED=False)
    return DeadLetterFactory.create(
        kind=message.kind, key=message.key, payload=message.payload, headers=message.headers
    )


def test_a_dead_job_with_a_url_stays_dead(caller, settings, dead):
    topic = f"topics/{JOB['topic']}"
    calls: dict[str, Callable[[], object]] = {
        f"{topic}/jobs/{dead.key}/kick": lambda: kick_job(JOB["topic"], dead.key),
        f"{topic}/kick": lambda: kick_topic(JOB["topic"]),
        f"dead/{dead.pk}/replay": lambda: replay(dead.pk),
    }
    for path, call in calls.items():
        with pytest.raises(CallbacksOff, match=re.escape(SAID)):
            call()
        refused = post(caller, f"/{path}")
        assert (refused.status_code, refused.json()["code"]) == (503, "callbacks_off")
    assert DeadLetter.objects.get() == dead
    switched(settings, ENABLED=True)
    assert kick_topic(JOB["topic"]) == 1


def test_a_dead_job_without_a_url_is_put_back() -> None:
    add_job(job_from(JOB))
    letter = DeadLetterFactory.create(kind=f"{JOB['topic']}|json", key="dead")
    assert kick_topic(JOB["topic"]) == 1
    assert not DeadLetter.objects.filter(pk=letter.pk).exists()
