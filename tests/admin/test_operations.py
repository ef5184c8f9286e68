"""Operations on rows: their permissions, effects and confirmations."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client, override_settings

from delayed_queue import DelayedQueue
from delayed_queue.admin.message_operations import lease_of
from delayed_queue.declaring import handler
from delayed_queue.handlers import registry
from delayed_queue.models import DeadLetter, Message
from tests.admin.lists import keys_of
from tests.admin.operations import CONFIRMED, ON_LETTERS, ON_MESSAGES, run
from tests.admin.support import LETTERS, MESSAGES, QUEUES, operator, page, post, tokens, told
from tests.support.factories import DeadLetterFactory, MessageFactory, worker_row

pytestmark = pytest.mark.django_db

WORKERS = "/admin/delayed_queue/worker/"

# Permissions


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("path", ["add/", "{id}/delete/"])
@pytest.mark.parametrize(
    ("factory", "url"),
    [(MessageFactory, MESSAGES), (DeadLetterFactory, LETTERS), (worker_row, WORKERS)],
)
def test_nothing_is_typed_or_deleted_through_forms(admin_client, factory, url, path, method):
    row = factory()
    response = getattr(admin_client, method)(url + path.format(id=row.pk), {"post": "yes"})

    assert response.status_code == 403
    for field in ("key", "name"):
        assert admin_client.post(f"{url}{row.pk}/change/", {field: "x"}).status_code == 403
    row.refresh_from_db()


@pytest.mark.parametrize("url", [MESSAGES, LETTERS, QUEUES, WORKERS])
def test_pages_need_the_view_permission(url: str):
    assert operator().get(url).status_code == 403
    assert Client().get(url).status_code == 302


@pytest.mark.parametrize(
    ("url", "action", "permission"),
    [(MESSAGES, *pair) for pair in ON_MESSAGES.items()]
    + [(LETTERS, *pair) for pair in ON_LETTERS.items()],
)
def test_each_operation_needs_its_own_permission(url: str, action: str, permission: str):
    """Neither the list nor the detail page offers it, and a direct post is refused."""
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


# Effects of each operation


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
        run(admin_client, "extend")
    before, lease_id = message.scheduled_at, message.lease_id
    message.refresh_from_db()

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
        "Skipped 1 message, due already: d.",
        "Skipped 1 message, leased; release it instead: l.",
    ]
    assert told(run(admin_client, "release"))[-2:] == [
        "Released 1 message: l.",
        "Skipped 2 messages, not leased: s, d.",
    ]
    assert told(run(admin_client, "extend"))[-1].startswith("Skipped 3 messages, not leased")


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
    [(MESSAGES, "reject"), (MESSAGES, "drop"), (LETTERS, "drop")],
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


def test_confirmation_leaves_out_what_changed_since(admin_client: Client):
    MessageFactory.create(key="kept")
    gone = MessageFactory.create(key="gone")
    selected = tokens(page(admin_client, MESSAGES))
    gone.delete()
    html = post(admin_client, MESSAGES, "drop", selected).content.decode()

    assert "gone" not in keys_of(html)
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
