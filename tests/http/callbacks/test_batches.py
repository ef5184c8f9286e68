"""Callbacks of jobs in batches count, and that of ``then`` has the counts (B8, B10)."""

from __future__ import annotations

import json

import pytest
from django.db.models import F

from delayed_queue.http.jobs.batches import close_batch, open_batch
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import Message, StoredBatch
from tests.http.callbacks.delivering import add, send_due
from tests.http.callbacks.servers import Receiver, answering

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh")]


def opened(url: str) -> int:
    return open_batch(job_from({"topic": "reports", "jobId": "then", "url": url}))


def test_b10_callbacks_count_and_then_is_called_with_the_counts(receiver: Receiver):
    batch = opened(f"{receiver.url}/then")
    add("received", receiver.url, batch=batch)
    add("late", receiver.url, batch=batch, expiresIn=60)
    add("refused", "http://10.0.0.1/", batch=batch, retry=9)
    Message.objects.filter(key="late").update(expires_at=F("created_at") - 1)
    close_batch(batch)
    send_due()
    assert not StoredBatch.objects.exists()
    send_due()
    headers = next(each.headers for each in receiver.requests if each.path.endswith("/then"))
    assert json.loads(headers["delayed-queue-batch"]) == {
        "id": batch, "total": 3, "done": 1, "dead": 1, "dropped": 0, "expired": 1
    }  # fmt: skip


def test_b10_a_callback_that_is_retried_has_not_ended(receiver: Receiver):
    receiver.behaviour = answering(500)
    batch = opened(f"{receiver.url}/then")
    add("a", receiver.url, batch=batch)
    close_batch(batch)
    send_due()
    assert StoredBatch.objects.get().pk == batch
    assert Message.objects.get().attempts == 1
