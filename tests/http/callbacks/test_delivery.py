"""Outcomes of jobs that carry a url (J1, J2, J9, J10, J12)."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.utils import timezone
from standardwebhooks import Webhook

from delayed_queue.http.callbacks import attempts, secrets
from delayed_queue.http.callbacks.calls import new_secret
from delayed_queue.http.jobs.catalogue import configure_topic
from delayed_queue.http.jobs.dead import kick_job
from delayed_queue.http.models import CallbackAttempt, Endpoint
from delayed_queue.models import DeadLetter, Message
from delayed_queue.worker.engine.settling import Counts
from tests.http.callbacks.delivering import (
    TOPIC,
    add,
    callback_worker,
    make_due,
    permitted,
    send_due,
)
from tests.http.callbacks.looking import SECOND, has_way, ways
from tests.http.callbacks.servers import (
    Receiver,
    answering,
    answering_in_turn,
    closing,
    redirecting,
    silent,
)
from tests.support.processes import wait_until
from tests.support.running import running

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh")]


class TestSuccess:
    def test_j9_the_body_is_posted_and_the_job_is_gone(self, receiver: Receiver) -> None:
        add("a", receiver.url)
        assert send_due().counts == Counts(done=1)
        (request,) = receiver.requests
        assert (request.path, request.body) == ("/hook", b'{"n":1}')
        assert not Message.objects.exists()
        assert ways() == [("a", 1, 200, "")]

    def test_j10_the_standards_own_library_verifies_it(self, receiver: Receiver) -> None:
        add("a", receiver.url)
        send_due()
        (request,) = receiver.requests
        secret = secrets.unseal(Endpoint.objects.get().secret)
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert Webhook(secret).verify(request.body, headers) == {"n": 1}

    def test_j10_for_a_day_after_a_rotation_both_secrets_verify(self, receiver: Receiver) -> None:
        add("a", receiver.url)
        send_due()
        old, new = Endpoint.objects.get().secret, secrets.seal(new_secret())
        Endpoint.objects.update(secret=new, previous_secret=old, rotated_at=timezone.now())
        add("b", receiver.url)
        send_due()
        request = receiver.requests[1]
        headers = {name.lower(): value for name, value in request.headers.items()}
        for each in (old, new):
            assert Webhook(secrets.unseal(each)).verify(request.body, headers) == {"n": 1}

    def test_shards_and_other_topics_are_sent_alike(self, receiver: Receiver) -> None:
        configure_topic(TOPIC, shards=4)
        for n in range(20):
            add(f"k{n}", receiver.url)
            add(f"k{n}", receiver.url, topic="bills")
        assert send_due().counts == Counts(done=40)

    def test_a_topic_made_while_the_worker_runs_is_served_at_once(self, receiver: Receiver) -> None:
        with running(callback_worker(poll_interval=timedelta(hours=1))):
            add("a", receiver.url, topic="new")
            receiver.wait_for_requests(1)


class TestFailure:
    def test_j1_the_ladder_is_climbed_and_then_the_job_is_dead(self, receiver: Receiver) -> None:
        """Nine waits, ten attempts, each wait from the end of the failed attempt."""
        receiver.behaviour = answering(503, b"busy")
        add("a", receiver.url)
        waits = []
        for attempt in range(1, 10):
            send_due()
            ended_at = CallbackAttempt.objects.get(attempt=attempt)
            message = Message.objects.get()
            assert message.attempts == attempt
            end = ended_at.started_at + timedelta(milliseconds=ended_at.duration)
            waits.append(message.scheduled_at - end)
            make_due()
        send_due()
        ladder = [15, 180, 600, 1800, 1800, 3600, 7200, 21600, 54000]
        assert [round(each / SECOND) for each in waits] == ladder
        assert not Message.objects.exists()
        letter = DeadLetter.objects.get()
        assert letter.reason == "attempts exhausted: 503"
        assert (letter.attempts, bytes(letter.payload)) == (10, b'{"n":1}')
        assert (letter.last_error or "").startswith("attempt 10: 503: ")
        assert ways() == [("a", n, 503, "status") for n in range(1, 11)]
        assert len(receiver.requests) == 10
        assert len({each.headers["webhook-id"] for each in receiver.requests}) == 1

    def test_j1_failures_before_it_came_here_are_steps_already_used(self, receiver):
        receiver.behaviour = answering(500)
        add("a", receiver.url, retry=8)
        send_due()
        assert round((Message.objects.get().scheduled_at - timezone.now()) / SECOND) in (
            53_999, 54_000
        )  # fmt: skip
        make_due()
        send_due()
        assert DeadLetter.objects.get().reason == "attempts exhausted: 500"
        assert [each[1] for each in ways()] == [9, 10]

    def test_j1_a_job_may_have_a_ladder_of_its_own(self, receiver: Receiver) -> None:
        receiver.behaviour = answering(500)
        add("own", receiver.url, ladder="2m")
        send_due()
        wait = Message.objects.get().scheduled_at - timezone.now()
        assert round(wait / SECOND) in (119, 120)

    @pytest.mark.parametrize("again", ["kick", "redrive"])
    def test_a_dead_job_that_is_put_back_has_the_id_its_receiver_knows(self, receiver, again):
        """The receiver may have handled its last attempt without an acknowledgement."""
        receiver.behaviour = answering(500)
        add("a", receiver.url, retry=20)
        send_due()
        if again == "kick":
            assert kick_job(TOPIC, "a") == 1
        else:
            DeadLetter.objects.redrive([DeadLetter.objects.get().id])
        receiver.behaviour = answering(200)
        assert send_due().counts == Counts(done=1)
        first, second = (each.headers["webhook-id"] for each in receiver.requests)
        assert first == second

        add("a", receiver.url)  # another job of that id
        send_due()
        assert receiver.requests[2].headers["webhook-id"] != first

    def test_j1_success_stops_it(self, receiver: Receiver) -> None:
        receiver.behaviour = answering_in_turn(answering(500), answering(204, b""))
        add("a", receiver.url)
        send_due()
        make_due()
        assert send_due().counts == Counts(done=1)
        assert ways() == [("a", 1, 500, "status"), ("a", 2, 204, "")]

    @pytest.mark.parametrize("behaviour", [closing, redirecting("http://127.0.0.1/"), silent])
    def test_j9_everything_else_is_a_failure(self, receiver: Receiver, behaviour: Any) -> None:
        receiver.behaviour = behaviour
        with permitted(receiver, TOTAL_TIMEOUT=timedelta(seconds=0.3)):
            add("a", receiver.url)
            assert send_due().counts == Counts(failed=1)
        assert Message.objects.get().attempts == 1

    @pytest.mark.parametrize(
        ("asked", "least", "most"),
        [
            ("90", 80, 90),
            ("Thu, 01 Jan 2026 00:01:30 GMT", 80, 90),
            ("5", 5, 15),
            ("0", 5, 15),
            ("Wed, 31 Dec 2025 00:00:00 GMT", 5, 15),
            ("soon", 5, 15),
            ("-90", 5, 15),
            ("90.5", 5, 15),
        ],
    )
    def test_j17_retry_after_is_the_least_wait_and_the_ladder_goes_on(
        self, receiver: Receiver, asked: str, least: int, most: int
    ) -> None:
        date = {"Date": "Thu, 01 Jan 2026 00:00:00 GMT"}
        receiver.behaviour = answering(429, b"", {"Retry-After": asked, **date})
        add("a", receiver.url)
        send_due()
        wait = Message.objects.get().scheduled_at - timezone.now()
        assert least <= wait / SECOND <= most

    def test_j9_retry_after_is_clamped(self, receiver: Receiver) -> None:
        receiver.behaviour = answering(503, b"", {"Retry-After": "999999999"})
        with permitted(receiver, RETRY_AFTER_LIMIT=timedelta(minutes=1)):
            add("a", receiver.url)
            send_due()
        assert Message.objects.get().scheduled_at - timezone.now() < timedelta(minutes=1)

    def test_a_url_that_is_refused_fails_by_the_ladder_and_dials_nothing(self, receiver):
        """Even if the url was allowed when it was offered."""
        add("a", "http://10.0.0.1/hook", ladder="1m")
        assert send_due().counts == Counts(failed=1)
        make_due()
        assert send_due().counts == Counts(dead=1)
        assert [each[2:] for each in ways()] == [(None, "blocked")] * 2
        assert DeadLetter.objects.get().reason == "attempts exhausted: blocked"
        assert not receiver.requests

    def test_a_message_whose_deliveries_died_is_dead_after_its_last(self, receiver):
        add("a", receiver.url, ladder="1m 1m")
        Message.objects.update(attempts=3)
        assert send_due().counts == Counts(dead=1)
        assert DeadLetter.objects.get().reason == "attempts exhausted: no answer"
        assert not receiver.requests

    def test_j2_a_message_without_a_url_is_no_callback(self, receiver: Receiver) -> None:
        add("a", receiver.url)
        Message.objects.update(headers={})
        assert send_due().counts == Counts(dead=1)


class TestGone:
    def test_j9_410_disables_the_endpoint_and_its_jobs_wait(self, receiver: Receiver) -> None:
        receiver.behaviour = answering(410)
        add("a", receiver.url)
        assert send_due().counts == Counts(failed=1)
        endpoint = Endpoint.objects.get()
        assert endpoint.disabled_at is not None
        assert endpoint.disabled_reason == "The receiver answered 410 Gone."
        make_due()
        add("b", receiver.url)
        assert send_due().counts == Counts(snoozed=2)
        assert len(receiver.requests) == 1
        assert list(Message.objects.order_by("key").values_list("attempts", flat=True)) == [1, 0]

        receiver.behaviour = answering(200)
        Endpoint.objects.update(disabled_at=None, disabled_reason="")
        make_due()
        assert send_due().counts == Counts(done=2)

    def test_another_endpoint_of_the_host_goes_on(self, receiver: Receiver) -> None:
        receiver.behaviour = answering(410)
        add("a", receiver.url)
        send_due()
        origin = receiver.url.removesuffix("/hook")
        gone = Endpoint.objects.get()
        Endpoint.objects.create(
            origin=origin, prefix=f"{origin}/other", secret=gone.secret, created_at=timezone.now()
        )
        receiver.behaviour = answering(200)
        add("b", f"{origin}/other/x")
        add("c", f"{origin}/otherwise")
        assert send_due().counts == Counts(done=1, snoozed=1)
        assert receiver.requests[1].path == "/other/x"


class TestLog:
    def test_attempts_are_written_together(self, receiver: Receiver) -> None:
        add("a", receiver.url)
        send_due()
        attempt = CallbackAttempt.objects.get()
        assert (attempt.topic, attempt.kind) == (TOPIC, f"{TOPIC}|callback")
        assert attempt.address == "127.0.0.1"
        assert attempt.excerpt == "ok"
        assert attempt.url == receiver.url
        assert attempt.endpoint_id == Endpoint.objects.get().id
        assert attempt.webhook_id == receiver.requests[0].headers["webhook-id"]

    def test_old_ones_are_pruned(self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attempts, "PRUNE_SECONDS", 0.0)
        add("a", receiver.url)
        send_due()
        CallbackAttempt.objects.update(started_at=timezone.now() - timedelta(days=31))
        add("b", receiver.url)
        with running(callback_worker()):
            wait_until(lambda: ways() == [("b", 1, 200, "")])

    def test_while_there_are_more_they_are_pruned_with_every_write(self, receiver, monkeypatch):
        monkeypatch.setattr(attempts, "MOST_PRUNED", 2)
        for n in range(5):
            add(f"old{n}", receiver.url)
        send_due()
        CallbackAttempt.objects.update(started_at=timezone.now() - timedelta(days=31))
        with running(callback_worker()):
            for n in range(3):
                add(f"new{n}", receiver.url)
                new = (f"new{n}", 1, 200, "")
                wait_until(partial(has_way, new))
            assert len(ways()) == 3
