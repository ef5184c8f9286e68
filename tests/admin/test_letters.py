"""Operations on dead letters, and the records of operators' actions."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db import DatabaseError, connection, transaction
from django.test import Client, override_settings

from delayed_queue.admin.operations import Call
from delayed_queue.models import DeadLetter, Message
from tests.admin.operations import CONFIRMED, run
from tests.admin.support import LETTERS, MESSAGES, page, post, tokens, told
from tests.support.factories import DeadLetterFactory, MessageFactory

pytestmark = pytest.mark.django_db


# Audit


@pytest.mark.parametrize(
    ("action", "flag", "text"),
    [
        ("release", CHANGE, "Released. Queue orders|json, key 'k', lease held."),
        ("extend", CHANGE, "Extended. Queue orders|json, key 'k', lease held."),
        ("reject", DELETION, "Rejected. Queue orders|json, key 'k', lease held. Reason: by phone"),
        ("drop", DELETION, "Dropped. Queue orders|json, key 'k', lease held."),
        ("deliver", CHANGE, "Made due. Queue orders|json, key 'k', lease none."),
    ],
)
def test_each_change_is_recorded(admin_client, admin_user, action, flag, text):
    state = {"scheduled": True} if action == "deliver" else {"leased": True, "lease_id": "held"}
    message = MessageFactory.create(key="k", payload=b'"secret"', **state)
    run(admin_client, action)
    entry = LogEntry.objects.get()

    assert entry.user == admin_user
    assert (entry.object_id, entry.object_repr) == (str(message.pk), "orders|json/k")
    assert str(entry.content_type) == "Delayed queue | message"
    assert (entry.action_flag, entry.get_change_message()) == (flag, text)
    assert "secret" not in str(vars(entry))
    if flag == CHANGE:
        assert text.partition(",")[0] in page(admin_client, f"{MESSAGES}{message.pk}/history/")


@pytest.mark.parametrize("action", ["release", "reject"])
def test_without_its_record_a_change_does_not_happen(admin_client: Client, action: str):
    """One transaction: the audit fails, so the operation is rolled back."""
    MessageFactory.create(leased=True)
    selected = tokens(page(admin_client, MESSAGES))
    before = Message.objects.values().get()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_admin_log ADD CHECK (false) NOT VALID")
    with pytest.raises(DatabaseError), transaction.atomic():
        post(admin_client, MESSAGES, action, selected, **CONFIRMED)

    assert Message.objects.values().get() == before
    assert not DeadLetter.objects.exists()


# Dead letters


def test_redrive_reports_the_outcome_of_each(admin_client: Client):
    for key in ("alive", "dead", "twice", "twice"):
        DeadLetterFactory.create(key=key, payload=b'"old"')
    MessageFactory.create(key="alive", payload=b'"new"')
    response = run(admin_client, "redrive", LETTERS)

    assert told(response) == [
        "Redriven 2 dead letters: dead, twice.",
        "Skipped 2 dead letters, because a message has their key, or a newer dead letter of the "
        "key was redriven: alive, twice.",
    ]
    assert sorted(DeadLetter.objects.values_list("key", flat=True)) == ["alive", "twice"]
    assert bytes(Message.objects.get(key="alive").payload) == b'"new"'
    assert sorted(each.object_repr for each in LogEntry.objects.all()) == [
        "orders|json/dead (attempts exhausted: ValueError)",
        "orders|json/twice (attempts exhausted: ValueError)",
    ]


def test_drop_letters(admin_client: Client):
    DeadLetterFactory.create_batch(2)
    gone = DeadLetterFactory.create()
    selected = tokens(page(admin_client, LETTERS))
    gone.delete()
    response = post(admin_client, LETTERS, "drop", selected, confirmed="yes")

    assert [each.partition(":")[0] for each in told(response)] == [
        "Dropped 2 dead letters", "Skipped 1 dead letter, no longer there"
    ]  # fmt: skip
    assert not DeadLetter.objects.exists()
    assert LogEntry.objects.count() == 2


# Several databases


class Replicated:
    """Reads go to a replica."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "primary"


def test_changes_go_where_the_model_is_written():
    with override_settings(DATABASE_ROUTERS=[Replicated()]):
        assert Message.objects.all().db == "replica"
        assert Call(Message.objects.all(), [], None).using == "primary"
        assert Call(Message.objects.using("queues"), [], None).using == "queues"
