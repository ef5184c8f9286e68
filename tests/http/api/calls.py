"""Calls of the API about jobs, as clients make them."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client

from delayed_queue.http.jobs.consuming import bury_job
from delayed_queue.models import DeadLetter
from tests.http.jobs.support import popped

JOB = {"jobId": "a", "topic": "orders"}


def post(client: Client, path: str, data: Any = None, **headers: str) -> Any:
    raw = data if isinstance(data, bytes) else json.dumps({} if data is None else data)
    kind = headers.pop("content_type", "application/json")
    return client.post(f"/queue/v1{path}", raw, content_type=kind, headers=headers)


def get(client: Client, path: str, status: int = 200) -> Any:
    response = client.get(f"/queue/v1{path}")
    assert response.status_code == status, response.content
    return response.json()


def pop(client: Client, query: str = "") -> Any:
    response = post(client, f"/topics/orders/pop{query}")
    assert response.status_code == 200, response.content
    return response.json()


def kill(client: Client, job_id: str = "a", topic: str = "orders") -> int:
    post(client, "/jobs", {"jobId": job_id, "topic": topic, "body": {"n": 1}})
    bury_job(topic, job_id, popped(topic).lease_token)
    return DeadLetter.objects.get(key=job_id).id


def errors_of(response: Any) -> set[tuple[str, str]]:
    assert response["Content-Type"] == "application/problem+json"
    return {(each["in"], each["path"]) for each in response.json()["errors"]}
