"""The page of all queues: what is in each, counted up to a limit."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client

from delayed_queue.admin import overview
from delayed_queue.observe.overview import MAX_KINDS, cap_for
from tests.factories import DeadLetterFactory, MessageFactory, from_now
from tests.integration.admin_lists import keys_of
from tests.integration.admin_support import LETTERS, MESSAGES, QUEUES, operator, page
from tests.races.concurrency import raw_connection

pytestmark = pytest.mark.django_db


# The queues


def test_queues_page_counts_each_queue_and_puts_the_latest_first(admin_client: Client):
    MessageFactory.create_batch(2, scheduled_at=from_now(seconds=-50))
    MessageFactory.create_batch(3, scheduled=True)
    MessageFactory.create(leased=True)
    MessageFactory.create(kind="late|text", scheduled_at=from_now(hours=-2))
    DeadLetterFactory.create(kind="gone|json")
    response = admin_client.get(QUEUES)
    lines = [each for each in response.context["lines"] if not each.handler]

    assert [
        (each.queue, each.due, each.scheduled, each.leased, each.dead, each.is_late)
        for each in lines
    ] == [
        ("late", "1", "0", "0", "0", True),
        ("orders", "2", "3", "1", "0", False),
        ("gone", "0", "0", "0", "1", False),
    ]
    assert "2 h late" in response.content.decode()
    assert "?kind=orders%7Cjson&amp;state=due" in response.content.decode()


def test_counts_stop_at_the_cap_and_say_so(admin_client: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("delayed_queue.observe.overview._CAPS", (3,))
    monkeypatch.setattr("delayed_queue.observe.overview.LEASE_CAP", 3)
    MessageFactory.create_batch(4, due=True)
    MessageFactory.create_batch(4, scheduled=True)
    MessageFactory.create_batch(4, leased=True, kind="held|json")
    DeadLetterFactory.create_batch(4)
    lines = {each.queue: each for each in admin_client.get(QUEUES).context["lines"]}

    orders, held = lines["orders"], lines["held"]
    assert (orders.due, orders.scheduled, orders.dead) == ("3+", "3+", "3+")
    assert held.leased == "3+"
    assert held.scheduled == "0+"


@pytest.mark.parametrize(("queues", "cap"), [(0, 10_000), (6, 10_000), (7, 5_000), (100, 1_000)])
def test_with_many_queues_each_is_counted_less_far(queues: int, cap: int):
    assert cap_for(queues) == cap


def test_only_so_many_queues_are_shown_and_it_says_so(admin_client: Client):
    for number in range(MAX_KINDS + 1):
        MessageFactory.create(kind=f"kind-{number}|json")
    html = page(admin_client, QUEUES)

    assert f"Only {MAX_KINDS} queues are shown" in html
    assert page(admin_client, MESSAGES).count("(json)</a>") == MAX_KINDS
    # A queue that is not among them can still be asked for.
    assert len(keys_of(page(admin_client, f"{MESSAGES}?kind=kind-99|json"))) == 1


def test_instants_that_no_datetime_holds_are_no_server_error(admin_client: Client):
    message = MessageFactory.create()
    for stored in (-(2**63) + 10**13, 2**63 - 1):
        with connection.cursor() as cursor:
            cursor.execute('UPDATE delayed_queue SET "scheduledAt" = %s', [stored])
        for url in (
            MESSAGES,
            f"{MESSAGES}?kind=orders|json",
            f"{MESSAGES}{message.pk}/change/",
            QUEUES,
        ):
            page(admin_client, url)


def test_queues_are_reached_from_the_apps_index_and_the_lists(admin_client: Client):
    for url in ("/admin/delayed_queue/", MESSAGES, LETTERS):
        assert f'href="{QUEUES}"' in page(admin_client, url)


def test_letters_are_not_counted_for_those_who_may_not_see_them():
    DeadLetterFactory.create(kind="gone|json")

    assert LETTERS not in page(operator("view_message"), QUEUES)


# What keeps deleted messages


def test_an_old_snapshot_is_named_with_what_would_end_it(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
):
    """O5: on the page that everybody looks at first; a young one is nobody's business."""
    with raw_connection() as holder:
        holder.execute("SET application_name = 'nightly <report>'")
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        pid = holder.info.backend_pid
        young = admin_client.get(QUEUES).content.decode()
        monkeypatch.setattr(overview, "OLD", timedelta(0))
        shown = admin_client.get(QUEUES).content.decode()
    assert "dq-notice" not in young
    assert f"held by session {pid} (nightly &lt;report&gt;, user" in shown
    assert f"SELECT pg_terminate_backend({pid});" in shown
    assert "idle in transaction" in shown
