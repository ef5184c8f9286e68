"""Operations on rows changed since the page was shown, and beside other transactions."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client, override_settings

from delayed_queue import DelayedQueue
from delayed_queue.admin.message_operations import Seen
from delayed_queue.db.wakeups import channel_of
from delayed_queue.http.jobs.catalogue import create_topic
from delayed_queue.http.store.finding import DROP_DEAD_JOB
from delayed_queue.http.store.topics import LOCK_JOBS
from delayed_queue.models import DeadLetter, Message
from tests.admin.operations import CONFIRMED, ON_LETTERS, ON_MESSAGES, run
from tests.admin.support import LETTERS, MESSAGES, page, post, tokens, told
from tests.support.concurrency import calling, raw_connection, wait_until_blocked
from tests.support.factories import DeadLetterFactory, MessageFactory

pytestmark = pytest.mark.django_db


# Fencing: between the page and the click


def again(message: Message) -> None:
    """The lease ends, and another worker leases the message."""
    Message.objects.filter(pk=message.pk).update(lease_id="another", attempts=9)


def lease(message: Message) -> None:
    Message.objects.filter(pk=message.pk).update(lease_id="another")


def replace(message: Message) -> None:
    """The producer offers another payload under the key: a new version, without a lease."""
    DelayedQueue("orders").offer_or_update(message.key, "new", delay=timedelta(hours=2))


def release(message: Message) -> None:
    Message.objects.release(message.lease_id, [message.pk])


@pytest.mark.parametrize(
    ("trait", "change"),
    [
        ("leased", again), ("leased", release), ("leased", replace), ("expired", again),
        ("scheduled", lease), ("scheduled", replace), ("due", lease),
    ],
)  # fmt: skip
@pytest.mark.parametrize("action", ON_MESSAGES)
def test_changed_meanwhile_is_left_alone(admin_client, action, trait, change):  # Q25, Q26
    message = MessageFactory.create(key="k", **{trait: True})
    selected = tokens(page(admin_client, MESSAGES))
    change(message)
    before = Message.objects.values().get()
    response = post(admin_client, MESSAGES, action, selected, **CONFIRMED)

    assert told(response) == ["Skipped 1 message, changed meanwhile: k."]
    assert Message.objects.values().get() == before
    assert not DeadLetter.objects.exists()
    assert LogEntry.objects.count() == 0


@pytest.mark.parametrize("action", ON_MESSAGES)
def test_gone_meanwhile_is_said(admin_client: Client, action: str):
    pk = MessageFactory.create(leased=True).pk
    selected = tokens(page(admin_client, MESSAGES))
    Message.objects.all().delete()
    response = post(admin_client, MESSAGES, action, selected, **CONFIRMED)

    assert told(response) == [f"Skipped 1 message, no longer there: id {pk}."]


def test_lease_that_its_holder_prolonged_is_still_the_one_seen(admin_client: Client):
    """Otherwise no operator could release a lease that a worker renews."""
    message = MessageFactory.create(leased=True)
    selected = tokens(page(admin_client, MESSAGES))
    Message.objects.extend([str(message.lease_id)], [message.pk], 3_600_000)

    assert "Released 1 message" in told(post(admin_client, MESSAGES, "release", selected))[0]


def test_changed_and_unchanged_rows_of_one_post_are_told_apart(admin_client: Client):
    rows = [MessageFactory.create(key=key, leased=True, lease_id="batch") for key in "abc"]
    selected = tokens(page(admin_client, MESSAGES))
    again(rows[1])

    assert told(post(admin_client, MESSAGES, "drop", selected, **CONFIRMED)) == [
        "Dropped 2 messages: a, c.",
        "Skipped 1 message, changed meanwhile: b.",
    ]
    assert Message.objects.get().key == "b"


@pytest.mark.parametrize("lease_id", ["a.b", "", "1.2.3", "ü&+ <"])
def test_tokens_carry_any_lease_id_of_another_service(admin_client: Client, lease_id: str):
    message = MessageFactory.create(leased=True, lease_id=lease_id)

    assert tokens(page(admin_client, MESSAGES))[0].endswith(f".{lease_id}")
    assert Seen.parse(Seen(1, -2, lease_id).token) == Seen(1, -2, lease_id)
    assert Seen.parse(Seen(1, 2, None).token) == Seen(1, 2, None)
    assert "Released 1 message" in told(run(admin_client, "release"))[0]
    message.refresh_from_db()
    assert message.lease_id is None


# With other connections


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("action", ["release", "deliver", "redrive"])
def test_sleeping_workers_are_woken(other, admin_client, action):
    MessageFactory.create(
        kind="woken|json", leased=action == "release", scheduled=action != "release"
    )
    DeadLetterFactory.create(kind="woken|json")
    other.execute(f"LISTEN {channel_of('woken|json')}")
    run(admin_client, action, LETTERS if action in ON_LETTERS else MESSAGES)

    assert len(list(other.notifies(timeout=5, stop_after=1))) == 1


@pytest.mark.django_db(transaction=True)
def test_notifications_can_be_switched_off(other: psycopg.Connection[Any], admin_client: Client):
    MessageFactory.create(kind="quiet|json", leased=True)
    other.execute(f"LISTEN {channel_of('quiet|json')}")
    with override_settings(DELAYED_QUEUE={"NOTIFY": False}):
        run(admin_client, "release")
    other.execute(f"NOTIFY {channel_of('quiet|json')}, 'end'")

    assert [each.payload for each in other.notifies(timeout=5, stop_after=1)] == ["end"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("action", ON_MESSAGES)
def test_message_that_a_handler_holds_is_not_waited_for(other, admin_client, action):
    MessageFactory.create(key="k", leased=True)
    selected = tokens(page(admin_client, MESSAGES))
    with other.transaction():
        other.execute('SELECT id FROM delayed_queue WHERE "pKey" = %s FOR UPDATE', ["k"])
        response = post(admin_client, MESSAGES, action, selected, **CONFIRMED)

    assert told(response) == ["Skipped 1 message, locked by another transaction; try again: k."]
    assert LogEntry.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_redrive_does_not_hang_behind_a_handler(other, admin_client, monkeypatch):
    """A transaction offers a message of the key: the dead letter stays, and the page reports it."""
    monkeypatch.setattr("delayed_queue.admin.operations._MAX_WAIT", 50)
    letter = DeadLetterFactory.create(key="k")
    selected = tokens(page(admin_client, LETTERS))
    with other.transaction():
        other.execute(
            """INSERT INTO delayed_queue (
                "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
            ) VALUES ('k', %s, '', 0, 0, 0)""",
            [letter.kind],
        )
        response = post(admin_client, LETTERS, "redrive", selected)

    assert told(response) == [
        "Nothing was changed: another transaction holds one of the rows. Try again."
    ]
    assert DeadLetter.objects.count() == 1
    assert LogEntry.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_redrive_and_a_deletion_of_the_job_do_not_wait_for_each_other(other, admin_client):
    """The jobs first, then their letters: in the lock order of a delete."""
    create_topic("orders")
    letter = DeadLetterFactory.create(key="a", kind="orders|json")
    job = {"topic": "orders", "key": "a"}
    other.execute("BEGIN")
    other.execute(LOCK_JOBS, {"topic": "orders", "keys": ["a"]})
    with raw_connection() as admin:
        redrive = partial(post, admin_client, LETTERS, "redrive", [str(letter.pk)])
        with calling(redrive) as redriving:
            wait_until_blocked(admin, redriving)
            other.execute("SET LOCAL lock_timeout = '500ms'")
            assert other.execute(DROP_DEAD_JOB, job).rowcount == 1
            other.execute("COMMIT")
            assert told(redriving.answer()) == [
                f"Skipped 1 dead letter, no longer there: id {letter.pk}."
            ]
    assert not Message.objects.exists()
