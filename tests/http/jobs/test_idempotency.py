"""J5: a key replays its first answer; the answer commits with the job."""

from __future__ import annotations

import time
from functools import partial

import pytest
from django.db import transaction
from django.db.models import F

from delayed_queue.http.jobs import idempotency
from delayed_queue.http.jobs.idempotency import KeptAnswer, once
from delayed_queue.http.models import IdempotencyKey
from delayed_queue.models import Message
from tests.http.jobs.support import add

pytestmark = pytest.mark.django_db
HOUR = 3_600_000


def answer(text: str = "first", job_id: str = "a") -> KeptAnswer:
    add(job_id)
    return KeptAnswer(202, text)


def ask(key: str = "key", request: bytes = b"{}", *, scope: str = "token POST jobs") -> object:
    return once(scope, key, request, partial(answer, job_id=key + scope[:1]))


def age(hours: float) -> None:
    IdempotencyKey.objects.update(created_at=F("created_at") - int(hours * HOUR))


def test_an_error_keeps_nothing() -> None:
    def fail() -> KeptAnswer:
        answer()
        raise LookupError

    with pytest.raises(LookupError):
        once("scope", "key", b"{}", fail)
    assert not Message.objects.exists()
    assert not IdempotencyKey.objects.exists()
    assert once("scope", "key", b"{}", answer) == KeptAnswer(202, "first")


def test_the_answer_goes_with_the_callers_transaction() -> None:
    with transaction.atomic():
        ask()
        transaction.set_rollback(True)
    assert not Message.objects.exists()
    assert not IdempotencyKey.objects.exists()


def test_a_key_is_forgotten_after_24_hours() -> None:
    ask()
    age(23.9)
    assert ask() == KeptAnswer(202, "first", is_replay=True)
    age(0.2)
    Message.objects.all().delete()
    assert ask(request=b"[]") == KeptAnswer(202, "first")
    assert ask(request=b"[]") == KeptAnswer(202, "first", is_replay=True)


@pytest.mark.django_db(transaction=True)
def test_while_there_are_more_they_are_pruned_as_fast_as_they_come(monkeypatch):
    monkeypatch.setattr(idempotency, "_BATCH", 2)
    monkeypatch.setattr(idempotency, "next_prune_at", time.monotonic() + 60)
    for n in range(3):
        ask(str(n))
    age(25)
    monkeypatch.setattr(idempotency, "next_prune_at", 0.0)
    ask("new")
    assert IdempotencyKey.objects.count() == 2
    assert idempotency.next_prune_at <= time.monotonic() + 1

    monkeypatch.setattr(idempotency, "next_prune_at", 0.0)
    ask("newer")
    assert IdempotencyKey.objects.count() == 2
    assert idempotency.next_prune_at > time.monotonic() + 60
