"""What operators do about hosts and endpoints: closed, opened, enabled, and what was deferred."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from delayed_queue.http.callbacks import operating
from delayed_queue.http.callbacks.operating import (
    disable_endpoint,
    enable_endpoint,
    endpoint_of,
    recall_endpoint,
    recall_host,
    register_endpoint,
)
from delayed_queue.http.jobs.adding import add_jobs
from delayed_queue.http.jobs.catalogue import configure_topic
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.http.models import Endpoint, Host, Topic
from delayed_queue.models import Message
from tests.http.callbacks.delivering import add, callback_worker, make_due, permitted, send_due
from tests.http.callbacks.servers import Receiver, answering
from tests.support.processes import wait_until
from tests.support.running import running

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh")]

SECOND = timedelta(seconds=1)
HOOKS = "https://example.com/hooks"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as opened, permitted(opened, BREAKER_FAILURES=3):
        yield opened


@pytest.fixture
def endpoint() -> Endpoint:
    register_endpoint(HOOKS)
    return endpoint_of(HOOKS)


def deferred(job_id: str, url: str = HOOKS, *, seconds: int = 600, **fields: Any) -> None:
    """Add a job that was due, and was deferred without an attempt."""
    add(job_id, url, **fields)
    Message.objects.filter(key=job_id).update(scheduled_at=timezone.now() + seconds * SECOND)


def due_in(job_id: str) -> float:
    return (Message.objects.get(key=job_id).scheduled_at - timezone.now()).total_seconds()


def is_waiting(job_id: str | None = None) -> bool:
    """Return whether the job, or any, was deferred and is in no worker's hands."""
    soon = timezone.now() + 15 * SECOND
    waiting = Message.objects.filter(lease_id=None, scheduled_at__gt=soon)
    return waiting.filter(key=job_id).exists() if job_id else waiting.exists()


class TestEndpoints:
    def test_what_a_worker_deferred_comes_when_the_endpoint_is_enabled(
        self, receiver: Receiver
    ) -> None:
        register_endpoint(receiver.url)
        endpoint = endpoint_of(receiver.url)
        disable_endpoint(endpoint)
        add("a", receiver.url)
        with running(callback_worker()):
            wait_until(lambda: is_waiting("a"), 20)
            assert due_in("a") > 200
            enable_endpoint(endpoint)
            assert recall_endpoint(endpoint) == 1
            # Sooner than the workers know of it, and it would be deferred again.
            assert due_in("a") > 2
            wait_until(lambda: not Message.objects.exists(), 20)
        assert len(receiver.requests) == 1

    @pytest.mark.parametrize(
        "url", [f"{HOOKS}/a", f"{HOOKS}?a=b", "HTTPS://EXAMPLE.com:443/hooks/a"]
    )
    def test_however_the_url_is_written(self, endpoint: Endpoint, url: str) -> None:
        deferred("a", url)
        assert recall_endpoint(endpoint) == 1
        assert 0 < due_in("a") < 10

    @pytest.mark.parametrize(
        "url",
        [
            "https://example.com/hooksmith", "https://example.com/", "https://example.org/hooks",
            "http://example.com/hooks", f"{HOOKS}/special/a",
        ],
    )  # fmt: skip
    def test_jobs_of_another_endpoint_stay(self, endpoint: Endpoint, url: str) -> None:
        register_endpoint(f"{HOOKS}/special")
        deferred("a", url)
        assert recall_endpoint(endpoint) == 0
        assert due_in("a") > 500

    def test_what_was_offered_for_later_and_what_waits_by_its_ladder_stay(
        self, endpoint: Endpoint
    ) -> None:
        add("later", HOOKS, delay=600)
        deferred("failed")
        Message.objects.filter(key="failed").update(attempts=1)
        deferred("leased")
        Message.objects.filter(key="leased").update(lease_id="held")
        deferred("refused", "https://example.com:99999/hooks")
        assert recall_endpoint(endpoint) == 0
        assert min(map(due_in, ("later", "failed", "leased", "refused"))) > 500

    def test_what_comes_sooner_anyway_comes_no_later(self, endpoint: Endpoint) -> None:
        deferred("soon", seconds=1)
        deferred("late")
        assert recall_endpoint(endpoint) == 1
        assert due_in("soon") < 1

    def test_of_all_topics_and_shards(self, endpoint: Endpoint) -> None:
        configure_topic("wide", shards=8)
        for n in range(30):
            deferred(f"{n}", topic=("wide", "orders", "mails")[n % 3])
        assert recall_endpoint(endpoint) == 30
        assert Topic.objects.count() == 3

    def test_many_are_recalled_in_batches_and_spread(
        self, endpoint: Endpoint, django_assert_num_queries: Any
    ) -> None:
        many(1200)
        before = timezone.now()
        # The endpoint's rows, the topics twice, which kinds; thrice a page and a batch; a wake-up.
        with django_assert_num_queries(11):
            assert recall_endpoint(endpoint) == 1200
        assert timezone.now() - before < 5 * SECOND
        dues = Message.objects.values_list("scheduled_at", flat=True)
        seconds = Counter((each - before) // SECOND for each in dues)
        assert min(seconds) >= 3
        assert max(seconds) <= 8
        assert max(seconds.values()) <= 1000
        assert len(seconds) >= 3

    def test_it_ends_after_some_seconds_and_goes_on_when_called_again(
        self, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        many(1200)
        monkeypatch.setattr(operating, "SECONDS", 0.0)
        assert recall_endpoint(endpoint) == 500
        far = timezone.now() + 100 * SECOND
        assert Message.objects.filter(scheduled_at__gt=far).count() == 700

    def test_it_ends_too_where_it_finds_none(
        self, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
    ) -> None:
        many(1200)
        register_endpoint("https://example.org/")
        other = endpoint_of("https://example.org/")
        monkeypatch.setattr(operating, "SECONDS", 0.0)
        # The endpoint's rows, the topics, which kinds, one page.
        with django_assert_num_queries(4):
            assert recall_endpoint(other) == 0


def many(count: int) -> None:
    add_jobs([job_from({"jobId": str(n), "topic": "orders", "url": HOOKS}) for n in range(count)])
    Message.objects.update(scheduled_at=timezone.now() + 600 * SECOND)


def opened(receiver: Receiver) -> Host:
    """Have the breaker of the receiver opened, by three failures whose jobs are gone."""
    receiver.behaviour = answering(500)
    for n in range(3):
        add(f"failing-{n}", receiver.url)
    send_due()
    Message.objects.all().delete()
    receiver.behaviour = answering(200)
    receiver.requests.clear()
    return Host.objects.get()


class TestHosts:
    def test_workers_send_soon_to_a_host_that_was_closed(self, receiver: Receiver) -> None:
        host = opened(receiver)
        with running(callback_worker()):
            add("waits", receiver.url)
            wait_until(lambda: is_waiting("waits"), 20)
            assert Host.objects.close(host.name)
            # Before the pause of 30 seconds is over.
            wait_until(lambda: is_sent("new", receiver), 20)
            assert recall_host(host) >= 1
            wait_until(lambda: not Message.objects.filter(key="waits").exists(), 20)
        assert Host.objects.get().openings == 0

    def test_workers_soon_leave_a_host_alone_that_was_opened(self, receiver: Receiver) -> None:
        host = opened(receiver)
        Host.objects.close(host.name)
        with running(callback_worker()):
            add("first", receiver.url)
            receiver.wait_for_requests(1)
            assert Host.objects.shut(host.name, "By me.", pause=60_000)
            wait_until(lambda: is_deferred(receiver), 20)
            sent = len(receiver.requests)
            make_due()
            add("more", receiver.url)
            wait_until(lambda: is_waiting("more"), 20)
        assert len(receiver.requests) == sent

    def test_a_host_that_fails_after_it_was_closed_is_opened_again(
        self, receiver: Receiver
    ) -> None:
        host = opened(receiver)
        Host.objects.close(host.name)
        receiver.behaviour = answering(500)
        for n in range(5):
            add(f"k{n}", receiver.url)
        send_due()
        assert Host.objects.get().open_until > timezone.now() + 20 * SECOND

    def test_jobs_of_other_hosts_stay(self) -> None:
        host = Host.objects.create(name="example.com:443")
        deferred("a")
        deferred("b", "https://example.com:8443/hooks")
        deferred("c", "https://example.org/hooks")
        assert recall_host(host) == 1
        assert due_in("a") < 10
        assert min(due_in("b"), due_in("c")) > 500

    def test_those_that_were_deferred_for_the_longest_pause_are_found(self) -> None:
        host = Host.objects.create(name="example.com:443")
        deferred("a", seconds=2 * 3600 - 5)
        assert recall_host(host) == 1


def is_sent(job_id: str, receiver: Receiver) -> bool:
    """Add jobs one after the other until one is sent at once."""
    add(f"{job_id}-{time.monotonic()}", receiver.url)
    return bool(receiver.requests)


def is_deferred(receiver: Receiver) -> bool:
    add(f"next-{time.monotonic()}", receiver.url)
    return is_waiting()
