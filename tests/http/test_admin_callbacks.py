"""The pages of callbacks: endpoints, their switches, hosts, and outcomes of jobs."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from delayed_queue.http.callbacks.attempts import url_to_show
from delayed_queue.http.callbacks.operating import register_endpoint, rotate_secret
from delayed_queue.http.callbacks.secrets import unseal
from delayed_queue.http.jobs.adding import add_job
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.http.models import CallbackAttempt, Endpoint, Host
from delayed_queue.models import Message
from tests.admin.support import MESSAGES, operator, page, post, tokens, told

pytestmark = pytest.mark.django_db(transaction=True)

ENDPOINTS = "/admin/delayed_queue_http/endpoint/"
HOSTS = "/admin/delayed_queue_http/host/"
ATTEMPTS = "/admin/delayed_queue_http/callbackattempt/"
URL = "https://example.com/hooks"


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def rows(client: Client, url: str) -> list[str]:
    found = re.findall(r"<tr>.*?</tr>", page(client, url).partition("<tbody>")[2], re.DOTALL)
    return [text(each) for each in found]


def log(key: str = "job-1", topic: str = "orders", **change: Any) -> None:
    given = {
        "key": key, "topic": topic, "kind": f"{topic}|callback", "webhook_id": "msg_1",
        "attempt": 1, "started_at": int(time.time() * 1000), "duration": 12, "status": 200,
        "address": "192.0.2.7",
    }  # fmt: skip
    CallbackAttempt.objects.create(**given | change)


# Endpoints


def test_registering_shows_the_secret_once_and_keeps_it_sealed(admin_client: Client):
    made = {"url": URL, "per_second": "5", "burst": "10", "concurrency": "3"}
    answer = admin_client.post(f"{ENDPOINTS}add/", made, follow=True)
    (secret,) = re.findall(r"<code>(whsec_[^<]+)</code>", answer.content.decode())
    endpoint = Endpoint.objects.get()
    assert (endpoint.prefix, endpoint.per_second, endpoint.burst, endpoint.concurrency) == (
        URL, 5.0, 10, 3
    )  # fmt: skip
    assert unseal(endpoint.secret) == secret
    for url in (ENDPOINTS, f"{ENDPOINTS}{endpoint.pk}/change/"):
        assert secret not in page(admin_client, url)
    assert secret not in LogEntry.objects.get().change_message
    assert rows(admin_client, ENDPOINTS)[0].startswith(f"{URL} enabled 5/s, 10 at once 3")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"url": "http://127.0.0.1/"}, "not public"),
        ({"url": "ftp://example.com/"}, "http"),
        ({"url": URL}, "is already registered"),
        ({"per_second": "0"}, "greater than or equal to 0.001"),
        ({"concurrency": "0"}, "greater than or equal to 1"),
    ],
)
def test_what_may_not_be_called_is_not_registered(admin_client, change, error):
    register_endpoint(URL)
    made = {"url": "https://example.org/", "per_second": "", "burst": "1", "concurrency": ""}
    answer = admin_client.post(f"{ENDPOINTS}add/", {**made, **change})
    assert error in text(answer.content.decode())
    assert Endpoint.objects.count() == 1


def test_limits_are_changed_and_the_rest_stays(admin_client: Client):
    register_endpoint(URL, per_second=5, burst=2)
    before = Endpoint.objects.get()
    url = f"{ENDPOINTS}{before.pk}/change/"
    admin_client.post(url, {"per_second": "", "burst": "1", "concurrency": "4", "prefix": "x"})
    after = Endpoint.objects.get()
    assert (after.per_second, after.burst, after.concurrency) == (None, 1, 4)
    assert (after.prefix, after.secret) == (before.prefix, before.secret)


def test_rotating_shows_the_new_secret_once_and_keeps_the_old_one(admin_client: Client):
    old = register_endpoint(URL)
    shown = tokens(page(admin_client, ENDPOINTS))
    assert "are you sure" in post(admin_client, ENDPOINTS, "rotate", shown).content.decode()
    assert unseal(Endpoint.objects.get().secret) == old
    (said,) = told(post(admin_client, ENDPOINTS, "rotate", shown, confirmed="1"))
    endpoint = Endpoint.objects.get()
    assert said.endswith(unseal(endpoint.secret))
    assert unseal(endpoint.previous_secret) == old
    assert unseal(endpoint.secret) not in LogEntry.objects.get().change_message


def test_disabling_and_enabling_again():
    register_endpoint(URL)
    client = operator("view_endpoint", "disable_endpoint")
    shown = tokens(page(client, ENDPOINTS))
    assert told(post(client, ENDPOINTS, "disable", shown, confirmed="1")) == [
        f"Disabled 1 endpoint: {URL}."
    ]
    assert Endpoint.objects.get().disabled_at is not None
    assert "disabled" in rows(client, ENDPOINTS)[0]
    assert told(post(client, ENDPOINTS, "enable", shown)) == [f"Enabled 1 endpoint: {URL}."]
    assert Endpoint.objects.get().disabled_at is None
    page(client, ENDPOINTS)
    assert told(post(client, ENDPOINTS, "enable", shown)) == [
        f"Skipped 1 endpoint, not disabled: {URL}."
    ]


def test_who_may_only_look_can_change_nothing():
    register_endpoint(URL)
    endpoint = Endpoint.objects.get()
    rotate_secret(endpoint)
    client = operator("view_endpoint")
    url = f"{ENDPOINTS}{endpoint.pk}/change/"
    assert client.post(url, {"burst": "7"}).status_code == 403
    for action in ("rotate", "disable", "enable"):
        assert post(client, ENDPOINTS, action, [str(endpoint.pk)]).status_code == 403
    assert client.get(f"{ENDPOINTS}add/").status_code == 403


# Hosts


@pytest.mark.parametrize(
    ("until", "state"), [(60, "suspended until"), (-60, "probing"), (None, "sending")]
)
def test_o15_the_state_of_a_host_is_shown(admin_client: Client, until: int | None, state: str):
    now = datetime.now(UTC)
    Host.objects.create(
        name="example.com:443", opened_at=now - timedelta(minutes=2), openings=3, reason="timeout",
        open_until=None if until is None else now + timedelta(seconds=until),
    )  # fmt: skip
    assert rows(admin_client, HOSTS)[0].startswith(f"example.com:443 {state} ")


@pytest.fixture
def host() -> Host:
    now = datetime.now(UTC)
    return Host.objects.create(
        name="example.com:443", opened_at=now, open_until=now + timedelta(hours=1), openings=9,
        reason="timeout",
    )  # fmt: skip


def test_closing_a_host_asks_first(host: Host):
    client = operator("view_host", "close_host")
    shown = tokens(page(client, HOSTS))
    assert "are you sure" in post(client, HOSTS, "close", shown).content.decode()
    assert Host.objects.get().open_until is not None
    assert told(post(client, HOSTS, "close", shown, confirmed="1")) == [
        "Sending again to 1 host: example.com:443."
    ]
    after = Host.objects.get()
    assert after.open_until is None
    assert (after.openings, after.probe_by) == (0, None)
    assert LogEntry.objects.get().change_message == "Sending again."
    page(client, HOSTS)
    assert told(post(client, HOSTS, "close", shown, confirmed="1")) == [
        "Skipped 1 host, sent to already: example.com:443."
    ]


def test_operators_read_of_no_circuit(host: Host):
    client = operator("view_host", "close_host")
    shown = tokens(page(client, HOSTS))
    asked = post(client, HOSTS, "close", shown).content.decode()
    pages = (page(client, HOSTS), page(client, f"{HOSTS}{host.pk}/change/"), asked)
    for words in (text(each.partition('id="content"')[2]) for each in pages):
        assert not re.search(r"\b(close|closed|open|opened|opening|half|breaker)\b", words, re.I)
    assert "Send again" in text(pages[0])


def test_who_may_only_look_closes_no_host(host: Host):
    client = operator("view_host")
    assert post(client, HOSTS, "close", [str(host.pk)], confirmed="1").status_code == 403
    assert Host.objects.get().openings == 9


def test_a_host_that_another_holds_is_not_waited_for(host: Host, other: psycopg.Connection[Any]):
    client = operator("view_host", "close_host")
    with other.transaction():
        other.execute("SELECT FROM delayed_queue_host FOR UPDATE")
        answer = post(client, HOSTS, "close", [str(host.pk)], confirmed="1")
    assert told(answer) == [
        "Skipped 1 host, locked by another transaction; try again: example.com:443."
    ]


# Attempts


def test_attempts_are_listed_and_found_by_the_job(admin_client: Client):
    log(key="job-1")
    log(key="job-2", status=503, failure="status", detail="The answer was 503.", excerpt="<b>no")
    log(key="job-2", topic="mails", attempt=2, status=None, failure="timeout", is_ambiguous=True)
    assert len(rows(admin_client, ATTEMPTS)) == 3
    found = rows(admin_client, f"{ATTEMPTS}?q=job-2")
    assert [each.split()[:7] for each in found] == [
        ["job-2", "mails", "2", "no", "answer", "in", "time"],
        ["job-2", "orders", "1", "status", "503", "12", "ms"],
    ]
    assert len(rows(admin_client, f"{ATTEMPTS}?topic=mails")) == 1
    row = CallbackAttempt.objects.get(excerpt="<b>no")
    detail = page(admin_client, f"{ATTEMPTS}{row.pk}/change/")
    assert "&lt;b&gt;no" in detail
    assert "<b>no" not in detail


def test_the_page_of_a_job_has_its_callbacks():
    add_job(job_from({"topic": "orders", "jobId": "job-1", "url": "https://example.com/"}))
    add_job(job_from({"topic": "orders", "jobId": "job-2"}))
    log(status=500, failure="status")
    log(key="job-1", topic="other")
    called, pulled = (Message.objects.get(key=key).pk for key in ("job-1", "job-2"))
    client = operator("view_message", "view_callbackattempt")
    shown = page(client, f"{MESSAGES}{called}/change/")
    assert "status 500" in text(shown)
    assert shown.count("192.0.2.7") == 1
    assert "Callbacks" not in page(client, f"{MESSAGES}{pulled}/change/")

    stranger = operator("view_message")
    hidden = text(page(stranger, f"{MESSAGES}{called}/change/"))
    assert "needs the permission delayed_queue_http.view_callbackattempt" in hidden
    assert "192.0.2.7" not in hidden
    assert stranger.get(ATTEMPTS).status_code == 403


def test_o4_a_host_says_how_many_jobs_wait_for_it(admin_client: Client):
    """In the host's own shards, of any topic; jobs of other hosts are not counted."""
    urls = ["https://one.example.com/a"] * 3 + ["https://two.example.com/b"]
    for topic in ("orders", "refunds"):
        for number, url in enumerate(urls):
            job = job_from({"topic": topic, "jobId": f"job-{number}", "url": url})
            add_job(job)
    for name in ("one", "two", "three"):
        Host.objects.open(f"{name}.example.com:443", "timeout", pause=60_000)
    found = {each.split()[0]: each for each in rows(admin_client, HOSTS)}
    assert " 6 " in found["one.example.com:443"].partition("UTC")[2]
    assert " 2 " in found["two.example.com:443"].partition("UTC")[2]
    assert " 0 " in found["three.example.com:443"].partition("UTC")[2]
    row = Host.objects.get(name="one.example.com:443")
    assert "Waiting jobs: 6" in text(page(admin_client, f"{HOSTS}{row.pk}/change/"))


def test_o4_an_attempt_shows_its_url(admin_client: Client):
    log(url="https://example.com/hooks?…")
    row = CallbackAttempt.objects.get()
    shown = text(page(admin_client, f"{ATTEMPTS}{row.pk}/change/"))
    assert "https://example.com/hooks?…" in shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://example.com/hooks", "https://example.com/hooks"),
        ("https://me:secret@example.com:8443/a?token=secret#x", "https://example.com:8443/a?…"),
        ("https://[", ""),
    ],
)
def test_o4_of_a_url_nothing_secret_is_logged(url: str, shown: str):
    assert url_to_show(url) == shown
