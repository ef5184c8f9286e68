"""The workers' pages, the leases they hold, and what keeps pages live (W12)."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.staticfiles import finders
from django.test import Client
from django.utils.translation import override
from pytest_django import Settings

from delayed_queue import DelayedQueue
from delayed_queue.admin.lists import LIVE
from delayed_queue.models import Message, Worker
from delayed_queue.worker.engine.plans import new_lease_id
from tests.admin.support import LETTERS, MESSAGES, QUEUES, operator, page, post, tokens, told
from tests.support.factories import MessageFactory, worker_row
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db

WORKERS = "/admin/delayed_queue/worker/"
SECOND = 1000


def enlist(name: str, **fields: Any) -> Worker:
    return worker_row(
        name, host="db-7", pid=4711, process=3, queues=["orders", "mail"], version="1.2.3", **fields
    )  # fmt: skip


def text(html: str) -> str:
    """Return the text of the page, with single blanks."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def rows(client: Client, url: str = WORKERS) -> list[str]:
    found = re.findall(r"<tr>.*?</tr>", page(client, url).partition("<tbody>")[2], re.DOTALL)
    return [text(each) for each in found]


def test_w12_the_list_says_who_works_where_on_what_and_how_fast(admin_client: Client):
    enlist(
        "worker-1", in_flight=1, done=2345, failed=6, dead=7, lost=8,
        rates={"orders": 30.0, "mail": 2.5}, busy={"mail": 3}, threads=8,
    )  # fmt: skip
    (row,) = rows(admin_client)

    assert row.startswith("worker-1 db-7 · pid 4711 · process 3 · 1.2.3 orders, mail alive")
    # Rate, longest-running, threads, in flight, done, retried, dead, lost.
    assert " 32/s — 3 / 8 1 2,345 6 7 8" in row


def test_o4_the_list_of_messages_names_the_worker_of_each_lease(admin_client: Client):
    enlist("web-1", holder="0a1b2c3d")
    MessageFactory.create(key="held", leased=True, lease_id="0a1b2c3d" + str(uuid4())[8:])
    MessageFactory.create(key="polled", leased=True)
    found = rows(admin_client, MESSAGES)
    assert [each.split()[0] for each in found if "web-1" in each] == ["held"]
    assert len(found) == 2


def test_o4_only_those_who_may_see_workers_read_their_names():
    enlist("web-1", holder="0a1b2c3d")
    MessageFactory.create(key="held", leased=True, lease_id="0a1b2c3d" + str(uuid4())[8:])
    (held,) = rows(operator("view_message"), MESSAGES)
    assert "web-1" not in held


@pytest.mark.parametrize(
    ("seconds", "words"), [(3, "alive 3 s ago"), (29, "alive 29 s ago"), (120, "silent for 2 min")]
)
def test_w12_alive_is_said_by_the_age_of_the_heartbeat_alone(admin_client, seconds, words):
    enlist("worker-1", silent_for=seconds, rates={"orders": 5.0})
    (row,) = rows(admin_client)
    # A second may pass between the heartbeat and the page.
    assert words in row or words.replace(str(seconds), str(seconds + 1)) in row
    assert ("5/s" in row) == (seconds < 30)


def test_w12_by_state(admin_client: Client):
    enlist("here")
    enlist("gone", silent_for=31)

    assert [row.split()[0] for row in rows(admin_client)] == ["gone", "here"]
    assert [row.split()[0] for row in rows(admin_client, f"{WORKERS}?state=alive")] == ["here"]
    assert [row.split()[0] for row in rows(admin_client, f"{WORKERS}?state=silent")] == ["gone"]


def test_w12_without_workers_the_page_says_how_to_start_one(admin_client: Client):
    assert "manage.py runqueueworker" in page(admin_client, WORKERS)


def test_w12_a_worker_that_stopped_leads_back_to_the_list(admin_client: Client):
    response = admin_client.get(f"{WORKERS}4711/change/")
    assert response.url == WORKERS  # type: ignore[attr-defined]
    assert told(response) == ["This worker has stopped and removed its row."]


# The leases


@pytest.fixture
def holding() -> Worker:
    """A worker with one lease on two messages; another worker leases a third."""
    for key in ("a", "b"):
        MessageFactory.create(key=key, leased=True, lease_id="0a1b2c3d-of-worker-1")
    MessageFactory.create(key="other", leased=True, lease_id="0a1b2c3e")
    return enlist("worker-1", holder="0a1b2c3d")


def test_w12_its_page_leads_to_the_messages_it_holds(admin_client: Client, holding: Worker):
    link = f"{MESSAGES}?q=lease%3A{holding.holder}"
    assert link in page(admin_client, f"{WORKERS}{holding.pk}/change/")
    assert shown(admin_client, f"?q=lease:{holding.holder}") == ["a", "b"]
    Message.objects.all().delete()
    assert link not in page(admin_client, f"{WORKERS}{holding.pk}/change/")


def test_w12_they_are_hidden_from_those_who_may_not_view_messages(holding: Worker):
    html = page(operator("view_worker"), f"{WORKERS}{holding.pk}/change/")
    assert "needs the permission delayed_queue.view_message" in html
    assert "?q=lease" not in html


def shown(client: Client, query: str) -> list[str]:
    response = client.get(MESSAGES + query)
    assert response.status_code == 200
    return [row.key for row in response.context["cl"].result_list]


@pytest.mark.parametrize("action", ["release", "extend", "reject", "drop"])
def test_w12_all_that_a_worker_holds_can_be_taken_from_it_in_one_go(admin_client, holding, action):
    url = f"{MESSAGES}?q=lease:{holding.holder}"
    selected = tokens(page(admin_client, url))
    response = post(admin_client, url, action, selected, confirmed="yes", reason="stuck")

    assert "2 messages: a, b." in told(response)[0]
    assert response.url == url


# The queues page


def line_of(client: Client, queue: str) -> Any:
    (line,) = (
        each for each in client.get(QUEUES).context["lines"] if each.depth.name.queue == queue
    )
    return line


def test_w12_a_queue_sums_up_its_live_workers(admin_client: Client):
    MessageFactory.create()
    enlist("one", rates={"orders": 30.0, "mail": 4.0})
    enlist("two", rates={"orders": 2.5})
    enlist("gone", silent_for=31, rates={"orders": 1000.0})
    line = line_of(admin_client, "orders")

    assert (line.service.workers, line.rate, line.is_unserved) == (2, "32/s", False)


def test_w12_a_queue_with_messages_that_nobody_serves_is_marked(admin_client: Client):
    MessageFactory.create(scheduled=True)
    line = line_of(admin_client, "orders")
    assert (line.service.workers, line.rate, line.is_unserved) == (0, "", True)


def test_w12_workers_are_not_linked_for_those_who_may_not_see_them():
    MessageFactory.create()
    assert WORKERS not in page(operator("view_message"), QUEUES)
    assert WORKERS in page(operator("view_message", "view_worker"), QUEUES)


# Live pages


@pytest.mark.parametrize("url", [QUEUES, WORKERS, MESSAGES, LETTERS])
def test_w12_pages_are_kept_live_by_a_file_of_their_own(admin_client: Client, url: str):
    MessageFactory.create()
    enlist("worker-1")
    html = page(admin_client, url)

    assert re.search(r'delayed_queue/live.js"[^>]* defer>', html)
    assert html.count("data-dq-live=") >= 1
    # A policy of script-src 'self' forbids inline scripts in the page.
    assert re.findall(r"<script(?![^>]* src=)(?![^>]*json)[^>]*>", html) == []
    assert re.findall(r"\son\w+=", html) == []


def test_w12_a_live_page_is_one_that_works_without_the_script(admin_client: Client):
    MessageFactory.create()
    html = page(admin_client, QUEUES)
    region = html.partition('data-dq-live="queues"')[2]
    assert "Refresh</a>" in region
    # The form is outside: replacing it would change its token while the operator clicks.
    assert "csrfmiddlewaretoken" not in region
    assert 'id="dq-switch"' in html.partition('data-dq-live="queues"')[0]


def test_w12_the_script_speaks_the_language_of_the_page(admin_client: Client, settings: Settings):
    settings.LANGUAGE_CODE = "de"
    with override("de"):
        html = page(admin_client, MESSAGES)
    assert 'data-off="Live: aus"' in html
    script = Path(str(finders.find("delayed_queue/live.js"))).read_text(encoding="utf-8")
    said = {f"data-{re.sub('[A-Z]', lambda each: f'-{each[0].lower()}', name)}"
            for name in re.findall(r"words\.(\w+)", script)}  # fmt: skip
    assert said == set(re.findall(r"data-[a-z-]+", str(LIVE)))


# Holder of a message


def lease_of(worker: Worker) -> str:
    return new_lease_id(worker.holder)


def named_holder(name: str, *, silent_for: int = 0) -> Worker:
    worker = enlist(name, silent_for=silent_for)
    worker.holder = f"{worker.pk:08x}"
    worker.save()
    return worker


def lease_cell(client: Client, **message: Any) -> str:
    row = MessageFactory.create(**message)
    html = page(client, f"{MESSAGES}{row.pk}/change/")
    return text(html.partition("Lease id:")[2].partition("Attempts:")[0])


def test_a_leased_message_names_its_holder(admin_client: Client):
    named_holder("other")
    worker = named_holder("worker-7")
    shown = lease_cell(admin_client, leased=True, lease_id=lease_of(worker))
    assert "Held by worker-7 on db-7, pid 4711, process 3, running since" in shown
    assert "; alive, heartbeat" in shown


def test_a_silent_holder_says_what_becomes_of_the_message(admin_client: Client):
    worker = named_holder("worker-7", silent_for=90)
    leased = lease_cell(admin_client, key="a", leased=True, lease_id=lease_of(worker))
    # Some seconds may pass between the heartbeat and the page.
    assert re.search(r"silent for 1 min 3\d s: its lease ends in", leased)
    assert "then the message is due again." in leased
    ended = lease_cell(admin_client, key="b", expired=True, lease_id=lease_of(worker))
    assert "ago; the message is due again." in ended


def test_a_lease_of_nobody_with_a_row_says_so(admin_client: Client):
    assert "No listed worker holds it." in lease_cell(admin_client, leased=True)


def test_who_may_not_see_workers_is_not_told_the_holder():
    worker = named_holder("worker-7")
    client = operator("view_message")
    assert "worker-7" not in lease_cell(client, leased=True, lease_id=lease_of(worker))


def test_a_silent_worker_says_what_became_of_its_messages(admin_client: Client):
    worker = named_holder("worker-7", silent_for=90)
    url = f"{WORKERS}{worker.pk}/change/"
    assert "It holds no messages any more: they were finished" in page(admin_client, url)
    MessageFactory.create(leased=True, lease_id=lease_of(worker))
    html = page(admin_client, url)
    assert "The worker is silent. It still holds the leases of these messages" in html
    assert f"?q=lease%3A{worker.holder}" in html


@pytest.mark.django_db(transaction=True)
def test_a_workers_leases_begin_with_what_its_row_says():
    release, held = threading.Event(), threading.Event()

    def hold(envelope: Any) -> None:
        held.set()
        release.wait(20)

    DelayedQueue("held").offer_or_update("a", 1)
    with running(worker_with(handler_of("held", hold))):
        assert held.wait(20)
        message = Message.objects.get(key="a")
        prefix = (message.lease_id or "")[:8]
        wait_until(lambda: Worker.objects.filter(holder=prefix).exists())
        release.set()
