"""What operators do to rows: fenced by what they saw, recorded, and told to sleeping workers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db import DatabaseError, connection, transaction
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from delayed_queue import DelayedQueue, sql
from delayed_queue.admin.message_operations import Seen, lease_of
from delayed_queue.admin.operations import Call
from delayed_queue.handlers import handler, registry
from delayed_queue.models import DeadLetter, Message
from delayed_queue.topics import create_topic
from delayed_queue.wakeups import channel_of
from tests.factories import DeadLetterFactory, MessageFactory
from tests.integration.admin_support import (
    LETTERS,
    MESSAGES,
    QUEUES,
    operator,
    page,
    post,
    tokens,
    told,
)
from tests.races.concurrency import calling, raw_connection, wait_until_blocked

pytestmark = pytest.mark.django_db

ON_MESSAGES = {
    "release": "release_message",
    "extend": "extend_message",
    "deliver": "deliver_message",
    "reject": "reject_message",
    "drop": "drop_message",
}
ON_LETTERS = {
    "redrive": "redrive_deadletter",
    "overwrite": "redrive_deadletter",
    "drop": "drop_deadletter",
}
CONFIRMED = {"confirmed": "yes", "reason": "by phone"}


def run(client: Client, action: str, url: str = MESSAGES) -> Any:
    """Do it to everything on the list, with the confirmation if it asks for one."""
    return post(client, url, action, tokens(page(client, url)), **CONFIRMED)


# Permissions


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("path", ["add/", "{id}/delete/"])
@pytest.mark.parametrize(
    ("factory", "url"), [(MessageFactory, MESSAGES), (DeadLetterFactory, LETTERS)]
)
def test_nothing_is_typed_or_deleted_through_forms(
    admin_client: Client, factory: Any, url: str, path: str, method: str
):
    row = factory()
    response = getattr(admin_client, method)(url + path.format(id=row.pk), {"post": "yes"})

    assert response.status_code == 403
    assert admin_client.post(f"{url}{row.pk}/change/", {"key": "x"}).status_code == 403
    row.refresh_from_db()


@pytest.mark.parametrize("url", [MESSAGES, LETTERS, QUEUES])
def test_pages_need_the_view_permission(url: str):
    assert operator().get(url).status_code == 403
    assert Client().get(url).status_code == 302


@pytest.mark.parametrize(
    ("url", "action", "permission"),
    [(MESSAGES, *pair) for pair in ON_MESSAGES.items()]
    + [(LETTERS, *pair) for pair in ON_LETTERS.items()],
)
def test_each_operation_needs_its_own_permission(url: str, action: str, permission: str):
    """Not offered on the list nor the detail page, and refused when posted nevertheless."""
    row: Any = (
        MessageFactory.create(leased=action != "deliver", scheduled=action == "deliver")
        if url == MESSAGES
        else DeadLetterFactory.create()
    )
    every = {*ON_MESSAGES.values(), *ON_LETTERS.values(), "view_payload"}
    views = {"view_message", "view_deadletter"}
    allowed = operator(*views, permission)
    others = operator(*views, *every - {permission})
    blind = operator(*every)
    button = f'name="action" value="{action}"'
    token = tokens(page(allowed, url))

    assert f'<option value="{action}"' in page(allowed, url)
    assert button in page(allowed, f"{url}{row.pk}/change/")
    assert f'<option value="{action}"' not in page(others, url)
    assert button not in page(others, f"{url}{row.pk}/change/")
    assert post(others, url, action, token, **CONFIRMED).status_code == 403
    assert post(others, url, action, token).status_code == 403
    assert post(blind, url, action, token, **CONFIRMED).status_code == 403
    assert LogEntry.objects.count() == 0
    assert post(allowed, url, action, token, **CONFIRMED).status_code == 302
    assert LogEntry.objects.count() == 1


def test_viewer_is_offered_no_checkboxes():
    MessageFactory.create()

    assert tokens(page(operator("view_message"), MESSAGES)) == []


def test_posts_need_the_csrf_token():
    MessageFactory.create(leased=True)
    client = operator("view_message", "release_message", enforce_csrf_checks=True)
    token = tokens(page(client, MESSAGES))

    assert post(client, MESSAGES, "release", token).status_code == 403
    csrf = client.cookies["csrftoken"].value
    response = post(client, MESSAGES, "release", token, csrfmiddlewaretoken=csrf)
    assert response.status_code == 302
    assert Message.objects.get().lease_id is None


# What each does


def test_release_gives_a_message_back_now(admin_client: Client):
    message = MessageFactory.create(leased=True, attempts=2)
    response = run(admin_client, "release")
    message.refresh_from_db()

    assert told(response) == [f"Released 1 message: {message.key}."]
    assert message.lease_id is None
    assert message.scheduled_at <= datetime.now(UTC)
    assert message.attempts == 2


def test_extend_prolongs_the_lease_by_the_settings_duration(admin_client: Client):
    message = MessageFactory.create(leased=True)
    with override_settings(DELAYED_QUEUE={"LEASE_DURATION": timedelta(hours=1)}):
        response = run(admin_client, "extend")
    before, lease_id = message.scheduled_at, message.lease_id
    message.refresh_from_db()

    assert "Leases now last at least 1 h." in told(response)[0]
    assert message.scheduled_at > before + timedelta(minutes=50)
    assert message.lease_id == lease_id


def test_lease_of_a_queue_is_its_handlers():
    handler("admin-lease", lease=timedelta(minutes=42))(print)
    try:
        assert lease_of("admin-lease|json") == timedelta(minutes=42)
    finally:
        registry.remove("admin-lease")
    assert lease_of("admin-lease|json") == timedelta(minutes=5)


def test_deliver_now_makes_a_scheduled_message_due(admin_client: Client):
    message = MessageFactory.create(scheduled=True, attempts=1)
    initially = message.scheduled_at_initially
    run(admin_client, "deliver")
    envelope = DelayedQueue("orders").try_poll()

    assert envelope is not None
    assert (envelope.key, envelope.attempt) == (message.key, 2)
    message.refresh_from_db()
    assert abs(message.scheduled_at_initially - initially) < timedelta(milliseconds=1)


def test_reject_keeps_the_message_as_a_dead_letter_with_the_reason(admin_client: Client):
    message = MessageFactory.create(leased=True, attempts=3, last_error="trouble")
    run(admin_client, "reject")
    letter = DeadLetter.objects.get()

    assert not Message.objects.exists()
    assert (letter.key, letter.reason, letter.attempts) == (message.key, "by phone", 3)
    assert (bytes(letter.payload), letter.last_error) == (bytes(message.payload), "trouble")


def test_drop_deletes_for_good(admin_client: Client):
    for trait in ("scheduled", "due", "leased", "expired"):
        MessageFactory.create(**{trait: True})
    response = run(admin_client, "drop")

    assert "Dropped 4 messages" in told(response)[0]
    assert not Message.objects.exists()
    assert not DeadLetter.objects.exists()


def test_what_does_not_apply_is_left_alone_and_said(admin_client: Client):
    MessageFactory.create(key="s", scheduled=True)
    MessageFactory.create(key="d", due=True)
    MessageFactory.create(key="l", leased=True)

    assert told(run(admin_client, "deliver")) == [
        "Made due 1 message: s.",
        "Left alone 1 message, due already: d.",
        "Left alone 1 message, leased, release it instead: l.",
    ]
    assert told(run(admin_client, "release"))[-2:] == [
        "Released 1 message: l.",
        "Left alone 2 messages, not leased: s, d.",
    ]
    assert told(run(admin_client, "extend"))[-1].startswith("Left alone 3 messages, not leased")


def test_long_reports_name_ten(admin_client: Client):
    MessageFactory.create_batch(13, leased=True)

    assert told(run(admin_client, "release"))[0].endswith("and 3 more.")


def test_buttons_of_a_detail_page_fit_its_state(admin_client: Client):
    offered = {
        trait: re.findall(
            r'name="action" value="(\w+)"',
            page(admin_client, f"{MESSAGES}{MessageFactory.create(**{trait: True}).pk}/change/"),
        )
        for trait in ("scheduled", "due", "leased", "expired")
    }

    assert offered == {
        "scheduled": ["deliver", "reject", "drop"],
        "due": ["reject", "drop"],
        "leased": ["release", "extend", "reject", "drop"],
        "expired": ["release", "extend", "reject", "drop"],
    }


def test_detail_page_posts_come_back_to_it_while_the_message_is_there(admin_client: Client):
    message = MessageFactory.create(leased=True)
    url = f"{MESSAGES}{message.pk}/change/"
    token = tokens(page(admin_client, url))
    released = post(admin_client, MESSAGES, "release", token, origin="detail")
    token = tokens(page(admin_client, url))
    dropped = post(admin_client, MESSAGES, "drop", token, origin="detail", confirmed="yes")

    assert released.headers["Location"] == url
    assert dropped.headers["Location"] == MESSAGES


def test_list_posts_come_back_to_the_same_filters(admin_client: Client):
    MessageFactory.create(leased=True)
    url = f"{MESSAGES}?kind=orders%7Cjson&state=leased"

    assert run(admin_client, "release", url).headers["Location"] == url


# Confirmation


@pytest.mark.parametrize(
    ("url", "action"),
    [(MESSAGES, "reject"), (MESSAGES, "drop"), (LETTERS, "overwrite"), (LETTERS, "drop")],
)
def test_destruction_asks_first(admin_client: Client, url: str, action: str):
    rows: list[Any] = [MessageFactory.create(key="one"), DeadLetterFactory.create(key="one")]
    selected = tokens(page(admin_client, url))
    response = post(admin_client, url, action, selected)
    html = response.content.decode()

    assert response.status_code == 200
    assert tokens(html) == selected
    assert "one" in html
    assert [row.refresh_from_db() for row in rows] == [None, None]
    assert LogEntry.objects.count() == 0
    assert post(admin_client, url, action, tokens(html), **CONFIRMED).status_code == 302
    assert LogEntry.objects.count() == 1


def test_reject_wants_a_reason_and_suggests_one(admin_client: Client):
    MessageFactory.create()
    selected = tokens(page(admin_client, MESSAGES))

    assert "rejected by admin" in post(admin_client, MESSAGES, "reject", selected).content.decode()
    response = post(admin_client, MESSAGES, "reject", selected, confirmed="yes", reason=" ")
    assert "This field is required" in response.content.decode()
    assert Message.objects.count() == 1


def test_confirmation_says_what_changed_since(admin_client: Client):
    MessageFactory.create(key="kept")
    gone = MessageFactory.create(key="gone")
    selected = tokens(page(admin_client, MESSAGES))
    gone.delete()
    html = post(admin_client, MESSAGES, "drop", selected).content.decode()

    assert "changed or gone since you saw it" in html
    assert "Drop 1 message<" in html


@pytest.mark.parametrize(
    "selected", [[], ["x"], ["1"], ["-1.2"], [f"{10**30}.1"], ["1.2.3", "\x00"]]
)
@pytest.mark.parametrize("action", ["release", "drop", "nonsense", ""])
def test_nonsense_changes_nothing(admin_client: Client, action: str, selected: list[str]):
    MessageFactory.create(leased=True)
    response = post(admin_client, MESSAGES, action, selected, confirmed="yes")

    assert response.status_code == 302
    assert Message.objects.get().lease_id is not None
    assert LogEntry.objects.count() == 0


# Fencing: between the page and the click


def again(message: Message) -> None:
    """The lease ends, and another worker leases the message."""
    Message.objects.filter(pk=message.pk).update(lease_id="another", attempts=9)


def lease(message: Message) -> None:
    Message.objects.filter(pk=message.pk).update(lease_id="another")


def replace(message: Message) -> None:
    """The producer offers another payload under the key: a new life, without any lease."""
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
def test_changed_meanwhile_is_left_alone(
    admin_client: Client, action: str, trait: str, change: Any
):  # Q25, Q26
    message = MessageFactory.create(key="k", **{trait: True})
    selected = tokens(page(admin_client, MESSAGES))
    change(message)
    before = Message.objects.values().get()
    response = post(admin_client, MESSAGES, action, selected, **CONFIRMED)

    assert told(response) == ["Left alone 1 message, changed meanwhile: k."]
    assert Message.objects.values().get() == before
    assert not DeadLetter.objects.exists()
    assert LogEntry.objects.count() == 0


@pytest.mark.parametrize("action", ON_MESSAGES)
def test_gone_meanwhile_is_said(admin_client: Client, action: str):
    pk = MessageFactory.create(leased=True).pk
    selected = tokens(page(admin_client, MESSAGES))
    Message.objects.all().delete()
    response = post(admin_client, MESSAGES, action, selected, **CONFIRMED)

    assert told(response) == [f"Left alone 1 message, no longer there: id {pk}."]


def test_lease_that_its_holder_prolonged_is_still_the_one_seen(admin_client: Client):
    """Or no lease that a worker keeps could be released."""
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
        "Left alone 1 message, changed meanwhile: b.",
    ]
    assert Message.objects.get().key == "b"


def test_one_statement_for_each_lease(admin_client: Client):
    for number in range(30):
        MessageFactory.create(leased=True, lease_id=f"lease-{number % 3}")
    selected = tokens(page(admin_client, MESSAGES))
    with CaptureQueriesContext(connection) as queries:
        post(admin_client, MESSAGES, "drop", selected, **CONFIRMED)

    deletions = [each["sql"] for each in queries if "DELETE FROM delayed_queue" in each["sql"]]
    assert len(deletions) == 3
    assert len([each for each in queries if "INSERT INTO" in each["sql"]]) == 1


@pytest.mark.parametrize("lease_id", ["a.b", "", "1.2.3", "ü&+ <"])
def test_tokens_carry_any_lease_id_of_another_service(admin_client: Client, lease_id: str):
    message = MessageFactory.create(leased=True, lease_id=lease_id)

    assert tokens(page(admin_client, MESSAGES))[0].endswith(f".{lease_id}")
    assert Seen.parse(Seen(1, -2, lease_id).token) == Seen(1, -2, lease_id)
    assert Seen.parse(Seen(1, 2, None).token) == Seen(1, 2, None)
    assert "Released 1 message" in told(run(admin_client, "release"))[0]
    message.refresh_from_db()
    assert message.lease_id is None


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
def test_each_change_is_recorded(
    admin_client: Client, admin_user: Any, action: str, flag: int, text: str
):
    state = {"scheduled": True} if action == "deliver" else {"leased": True, "lease_id": "held"}
    message = MessageFactory.create(key="k", payload=b'"secret"', **state)
    run(admin_client, action)
    entry = LogEntry.objects.get()

    assert entry.user == admin_user
    assert (entry.object_id, entry.object_repr) == (str(message.pk), "orders|json/k")
    assert str(entry.content_type) == "Delayed queue | message"
    assert (entry.action_flag, entry.get_change_message()) == (flag, text)
    assert "secret" not in str(vars(entry))


def test_longest_key_is_recorded_in_full(admin_client: Client):
    key = "k" * 200
    MessageFactory.create(key=key, kind="q" * 100, leased=True)
    run(admin_client, "release")

    assert key in LogEntry.objects.get().get_change_message()


def test_history_of_a_message_shows_what_was_done(admin_client: Client):
    message = MessageFactory.create(leased=True)
    run(admin_client, "release")

    assert "Released. Queue" in page(admin_client, f"{MESSAGES}{message.pk}/history/")


@pytest.mark.parametrize("action", ON_MESSAGES)
def test_without_its_record_a_change_does_not_happen(admin_client: Client, action: str):
    """One transaction: the audit fails, so nothing was done."""
    MessageFactory.create(scheduled=action == "deliver", leased=action != "deliver")
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
        "Redriven 2 dead letters: dead (created), twice (created).",
        "Left alone 2 dead letters, as a message lives under their key, or a newer letter of it "
        "came first: alive, twice.",
    ]
    assert sorted(DeadLetter.objects.values_list("key", flat=True)) == ["alive", "twice"]
    assert bytes(Message.objects.get(key="alive").payload) == b'"new"'
    assert sorted(each.object_repr for each in LogEntry.objects.all()) == [
        "orders|json/dead (attempts exhausted: ValueError)",
        "orders|json/twice (attempts exhausted: ValueError)",
    ]


def test_redrive_over_the_living(admin_client: Client):
    DeadLetterFactory.create(key="alive", payload=b'"old"')
    MessageFactory.create(key="alive", payload=b'"new"', leased=True)
    response = run(admin_client, "overwrite", LETTERS)
    message = Message.objects.get()

    assert told(response) == ["Redriven 1 dead letter: alive (overwritten)."]
    assert (bytes(message.payload), message.lease_id, message.attempts) == (b'"old"', None, 0)
    assert "Redriven, overwritten. Queue orders|json" in LogEntry.objects.get().get_change_message()


def test_drop_letters(admin_client: Client):
    DeadLetterFactory.create_batch(2)
    gone = DeadLetterFactory.create()
    selected = tokens(page(admin_client, LETTERS))
    gone.delete()
    response = post(admin_client, LETTERS, "drop", selected, confirmed="yes")

    assert [each.partition(":")[0] for each in told(response)] == [
        "Dropped 2 dead letters", "Left alone 1 dead letter, no longer there"
    ]  # fmt: skip
    assert not DeadLetter.objects.exists()
    assert LogEntry.objects.count() == 2


# With other connections


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("action", ["release", "deliver", "redrive", "overwrite"])
def test_sleeping_workers_are_woken(
    other: psycopg.Connection[Any], admin_client: Client, action: str
):
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
def test_message_that_a_handler_holds_is_not_waited_for(
    other: psycopg.Connection[Any], admin_client: Client, action: str
):
    MessageFactory.create(key="k", leased=True)
    selected = tokens(page(admin_client, MESSAGES))
    with other.transaction():
        other.execute('SELECT id FROM delayed_queue WHERE "pKey" = %s FOR UPDATE', ["k"])
        response = post(admin_client, MESSAGES, action, selected, **CONFIRMED)

    assert told(response) == [
        "Left alone 1 message, held by another transaction just now, try again: k."
    ]
    assert LogEntry.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_redrive_does_not_hang_behind_a_handler(
    other: psycopg.Connection[Any], admin_client: Client, monkeypatch: pytest.MonkeyPatch
):
    """The living message is held by a transaction; the letter stays, the operator is told."""
    monkeypatch.setattr("delayed_queue.admin.operations._MAX_WAIT", 50)
    MessageFactory.create(key="k")
    DeadLetterFactory.create(key="k")
    selected = tokens(page(admin_client, LETTERS))
    with other.transaction():
        other.execute('SELECT id FROM delayed_queue WHERE "pKey" = %s FOR UPDATE', ["k"])
        response = post(admin_client, LETTERS, "overwrite", selected, **CONFIRMED)

    assert told(response) == [
        "Nothing was changed: another transaction holds one of the rows. Try again."
    ]
    assert DeadLetter.objects.count() == 1
    assert LogEntry.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_redrive_and_a_deletion_of_the_job_do_not_wait_for_each_other(
    other: psycopg.Connection[Any], admin_client: Client
):
    """The jobs first, then their letters: as who deletes a job locks them."""
    create_topic("orders")
    letter = DeadLetterFactory.create(key="a", kind="orders|json")
    job = {"topic": "orders", "key": "a"}
    other.execute("BEGIN")
    other.execute(sql.LOCK_JOBS, {"topic": "orders", "keys": ["a"]})
    with raw_connection() as admin:
        redrive = partial(post, admin_client, LETTERS, "redrive", [str(letter.pk)])
        with calling(redrive) as redriving:
            wait_until_blocked(admin, redriving)
            other.execute("SET LOCAL lock_timeout = '500ms'")
            assert other.execute(sql.DROP_DEAD_JOB, job).rowcount == 1
            other.execute("COMMIT")
            assert told(redriving.answer()) == [
                f"Left alone 1 dead letter, no longer there: id {letter.pk}."
            ]
    assert not Message.objects.exists()


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
