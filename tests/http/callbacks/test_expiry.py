"""Callbacks of jobs that have expired are not sent (Q37)."""

from __future__ import annotations

import pytest
from django.db.models import F

from delayed_queue.models import DeadLetter, Message
from delayed_queue.worker.engine.settling import Counts
from tests.http.callbacks.delivering import add, send_due
from tests.http.callbacks.servers import Receiver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh")]


def test_q37_an_expired_callback_is_deleted_unsent_and_no_dead_job(receiver: Receiver):
    add("late", receiver.url, expiresIn=60)
    add("b", receiver.url, expiresIn=60)
    Message.objects.filter(key="late").update(expires_at=F("created_at") - 1)
    assert send_due().counts == Counts(done=1, expired=1)
    assert len(receiver.requests) == 1
    assert not Message.objects.exists()
    assert not DeadLetter.objects.exists()
