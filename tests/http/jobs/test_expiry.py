"""Jobs that expire are neither popped nor called (Q37)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models import F

from delayed_queue import DelayedQueue, Groups
from delayed_queue.exceptions import InvalidJob
from delayed_queue.http.jobs.consuming import release_job
from delayed_queue.http.jobs.jobs import Answer, JobState
from delayed_queue.messages import OfferOutcome
from delayed_queue.models import DeadLetter, Message
from tests.http.jobs.support import add, found, pop_jobs, popped, server_now

pytestmark = pytest.mark.django_db(transaction=True)
SOONER, FAR = "2030-01-01T00:00:00Z", "2035-01-01T00:00:00Z"
HOUR = timedelta(hours=1)


def let_expire(*keys: str) -> None:
    """Set the expiry before the creation, by the clock of the database."""
    Message.objects.filter(key__in=keys).update(expires_at=F("created_at") - 1)


def test_q37_the_expiry_is_stored_and_read():
    before = server_now()
    add("in", expiresIn="1h", delay=60)
    add("at", expiresAt=FAR)
    add("never")
    stored = found("in").expires_at
    assert stored is not None
    assert before + HOUR <= stored <= server_now() + HOUR
    assert found("at").expires_at == datetime(2035, 1, 1, tzinfo=UTC)
    assert found("never").expires_at is None


@pytest.mark.parametrize("has_limits", [False, True])
def test_q37_an_expired_job_is_deleted_by_a_pop_and_the_next_is_returned(has_limits: bool):
    if has_limits:
        DelayedQueue("orders").groups.set(Groups(concurrency=1))
    for key in ("a", "b"):
        add(key, expiresIn=60, ladder="1s")
        let_expire(key)
    add("c", expiresIn=60)
    assert [each.job_id for each in pop_jobs("orders", 1)] == ["c"]
    assert [each.key for each in Message.objects.all()] == ["c"]
    assert not DeadLetter.objects.exists()


def test_q37_a_retry_expires_also_after_the_last_attempt():
    add(expiresIn=60, ladder="1s")
    assert release_job("orders", "a", popped().lease_token, delay=timedelta(0)) is Answer.DONE
    Message.objects.update(attempts=5)
    let_expire("a")
    assert pop_jobs("orders") == []
    assert not Message.objects.exists()
    assert not DeadLetter.objects.exists()


def test_q37_another_expiry_is_an_update_and_none_clears_it():
    same: dict[str, Any] = {"expiresAt": FAR, "runAt": SOONER, "if_exists": "update"}
    add(**same)
    assert add(**same).outcome is OfferOutcome.IGNORED
    assert add(**{**same, "expiresAt": "2034-01-01T00:00:00Z"}).outcome is OfferOutcome.UPDATED
    assert add(**{**same, "expiresAt": None}).outcome is OfferOutcome.UPDATED
    assert found().expires_at is None


def test_q37_a_lease_is_shown_as_leased_until():
    add(expiresIn=60)
    job = popped()
    stored = found()
    assert (stored.state, stored.leased_until) == (JobState.RESERVED, job.leased_until)
    assert stored.expires_at is not None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"expiresIn": 60, "expiresAt": FAR}, "expiresIn"),
    "before the delay": ({"expiresIn": 60, "delay": 60}, "expiresIn"),
    "before runAt": ({"expiresAt": FAR, "runAt": FAR}, "expiresAt"),
    "in the past": ({"expiresAt": "2020-01-01T00:00:00Z"}, "expiresAt"),
    "in before runAt": ({"expiresIn": 60, "runAt": FAR}, "expiresIn"),
    "at before the delay": ({"expiresAt": "2026-01-01T00:00:00Z", "delay": "1w"}, "expiresAt"),
    "no zone": ({"expiresAt": "2030-01-01T00:00:00"}, "expiresAt"),
    "zero": ({"expiresIn": 0}, "expiresIn"),
    "negative": ({"expiresIn": -1}, "expiresIn"),
    "no time": ({"expiresIn": "soon"}, "expiresIn"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_q37_a_bad_expiry_is_named_and_nothing_is_stored(name: str):
    fields, field = REFUSED[name]
    with pytest.raises(InvalidJob) as caught:
        add(**fields)
    assert field in dict(caught.value.errors)
    assert not Message.objects.exists()
