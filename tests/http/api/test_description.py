"""The description and the code judge the same bodies alike (J14)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema_rs
import pytest
from django.test import Client
from pytest_django import Settings

from delayed_queue.exceptions import InvalidJob
from delayed_queue.http.api.jobs import NewJobBody
from delayed_queue.http.api.openapi import schema_of
from delayed_queue.http.api.tasks import NewTaskBody
from delayed_queue.http.callbacks.guard import check_url
from delayed_queue.http.jobs.requests import call_from, job_from
from delayed_queue.http.reading import read
from delayed_queue.notifications.api import NotificationBody
from delayed_queue.notifications.recipients import problem_with
from delayed_queue.notifications.requests import SuppressionRequest
from delayed_queue.notifications.validation import validate

AT = "2030-01-01T00:00:00Z"
SOON = (datetime.now(UTC) + timedelta(days=1)).isoformat()
VALUES: dict[str, list[Any]] = {
    "jobId": ["a", ".", "..", "...", "a/b", "x" * 200, "x" * 201, "", "é", "a\n", None, 5],
    "topic": ["a", "-a", "a#b", "x" * 80, "x" * 81, "a\n", "a b", "é", None],
    "delay": [0, 1.5, -1, None, True, "1", 315532800, 315532801, 1e300],
    "runAt": [AT, "2030-01-01", "2030-01-01T00:00:00", None, "", 5],
    "body": [None, 1, "x", {}, [{"a": []}]],
    "retry": [0, 1000, 1001, -1, 1.0, 1.5, None, True, "1"],
    "url": [
        "https://e.org/", "http://e.org", "HTTPS://e.org?a#", "ftp://e.org/", "", "e.org", "/x",
        "https://e.org/ä", "https://ä.org/", "https://e.org/#a", "https://u:p@e.org/",
        "https://e.org/ a", "https://e.org/\\", "https://e.org/a%2Fb", "https://e.org/%zz", "https://e.org/{x}",
        "mailto:a@b.org", "https://e.org/" + "x" * 2034, "https://e.org/" + "x" * 2035, None, 5,
    ],
    "ttr": [1, 0.5, 86400, 86401, None, "1", True],
    "ladder": [
        "15s", "15s 3m", "1.5h", "2d", "500ms", "", "15x", "99999h", " ".join(["1s"] * 100),
        " ".join(["1s"] * 101), ["15s"], None, 5,
    ],
    "jitter": [0, 1, 0.2, 1.1, -0.1, None, True, "1"],
    "group": ["a", "x" * 100, "x" * 101, "", None, "a\n", 5, "é"],
    "nope": [1],
}  # fmt: skip
JOBS = [
    {}, {"jobId": "a"}, {"topic": "t"},
    *({"jobId": "a", "topic": "t", name: each} for name, found in VALUES.items() for each in found),
    {"jobId": "a", "topic": "t", "delay": 1, "runAt": AT},
    {"jobId": "a", "topic": "t", "delay": None, "runAt": AT},
]  # fmt: skip
CALLS: dict[str, list[Any]] = {
    "task": ["", "x" * 500, "x" * 501, "a\n", None, 5], "args": [[], None, {}, [1], "x"],
    "kwargs": [{}, None, [], {"a": 1}], "delay": [0, -1, None], "nope": [1],
}  # fmt: skip
TASKS = [
    {}, *({"task": "a.b", name: each} for name, found in CALLS.items() for each in found),
    {"task": "a.b", "delay": 1, "runAt": AT},
]  # fmt: skip
FILE = {"name": "a", "content": "aGk="}
EMAIL = {"channel": "email", "to": "a@example.org", "subject": "s", "body": "b"}
FIELDS: dict[str, list[Any]] = {
    "channel": ["fax", "", None], "to": ["", None, 5, "x" * 3000],
    "template": ["", "a b", None, 5], "templateVersion": [None, 0, 2**31], "context": [None, []],
    "subject": ["x" * 256, "a\nb", 5], "html": [None, "", "<b>", 5], "nope": [1],
    "category": ["", "a", "A", "a b", None, "x" * 50, "x" * 51], "priority": ["high", "no", None],
    "sendAt": [SOON, "2030-01-01", None], "dedupeKey": ["", "a", "a\n", "\u2028", "x" * 201, None],
    "callbackUrl": ["https://e.org/", "ftp://e.org", "x", "https://e.org/" + "x" * 2040, None],
    "cc": [[], None, ["b@e.org"], ["b@e.org"] * 21, "b@e.org", [5]],
    "replyTo": ["b@e.org", None, 5],
    "headers": [{}, None, [], {"References": "a"}],
    "attachments": [
        [], None, {}, [FILE], [FILE] * 21, [{"content": "aGk="}], [FILE | {"size": 1}],
        [FILE | {"type": "text/plain"}], [FILE | {"type": "x"}], [FILE | {"name": "a/b"}],
    ],
}  # fmt: skip
NOTIFICATIONS = [
    EMAIL, {"channel": "email", "to": "a@example.org", "subject": "s"},
    *({**EMAIL, name: each} for name, found in FIELDS.items() for each in found),
]  # fmt: skip
SUPPRESSED = {"channel": "email", "to": "a@example.org"}
SUPPRESSIONS = [
    {}, {"channel": "email"},
    *({**SUPPRESSED, name: each} for name in ("channel", "to", "category", "nope")
      for each in FIELDS[name]),
    *({**SUPPRESSED, "reason": each} for each in ("bounce", "nope", None, 5)),
]  # fmt: skip


def find_no_template(*which: Any) -> None:
    return None


def takes(call: Callable[..., object]) -> Callable[[Any], bool]:
    def judge(body: Any) -> bool:
        try:
            call(body)
        except InvalidJob:
            return False
        return True

    return judge


def is_valid(body: Any) -> bool:
    return not isinstance(validate(body, find_no_template), list)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "judge", "bodies"),
    [
        (NewJobBody, takes(lambda body: job_from(body, check_url=check_url)), JOBS),
        (NewTaskBody, takes(call_from), TASKS),
        (NotificationBody, is_valid, NOTIFICATIONS),
    ],
    ids=["job", "task", "notification"],
)
def test_schema_and_code_judge_a_body_alike(kind, judge, bodies):
    described = jsonschema_rs.Draft202012Validator(schema_of(kind), validate_formats=True)
    bodies = [json.loads(json.dumps(each)) for each in bodies]
    differing = [each for each in bodies if described.is_valid(each) != judge(each)]
    assert differing == []


@pytest.mark.django_db
def test_schema_and_code_judge_a_suppression_alike() -> None:
    described = jsonschema_rs.Draft202012Validator(schema_of(SuppressionRequest))
    for body in SUPPRESSIONS:
        found = read(SuppressionRequest, body, [])
        is_right = found is not None and not problem_with(found.channel, found.to)
        assert described.is_valid(body) == is_right, body


@pytest.mark.urls("example_project.urls")
def test_the_limits_of_settings_are_described(client: Client, settings: Settings) -> None:
    settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {
        "API": {"POP_COUNT": 7, "POP_TIMEOUT": timedelta(seconds=9), "BULK_ITEMS": 11}
    }
    found = client.get("/queue/v1/openapi.json").json()
    pop = found["paths"]["/queue/v1/topics/{topic}/pop"]["post"]["parameters"]
    maxima = {each["name"]: each["schema"].get("maximum") for each in pop}
    assert (maxima["count"], maxima["timeout"]) == (7, 9)
    bulk = found["paths"]["/queue/v1/jobs/bulk"]["post"]["requestBody"]["content"]
    assert bulk["application/json"]["schema"]["maxItems"] == 11
