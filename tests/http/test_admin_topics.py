"""The pages of topics and tokens: their content and operations."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from delayed_queue.http.jobs.adding import add_jobs, find_job
from delayed_queue.http.jobs.catalogue import configure_topic, is_paused, pause_topic, read_topic
from delayed_queue.http.jobs.consuming import bury_job
from delayed_queue.http.jobs.jobs import JobState
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.http.models import ApiToken, Topic
from delayed_queue.http.tokens import create_token, find_grant
from delayed_queue.models import DeadLetter
from tests.admin.support import LETTERS, operator, page, post, tokens, told
from tests.http.jobs.support import pop_jobs

pytestmark = pytest.mark.django_db(transaction=True)

TOPICS = "/admin/delayed_queue_http/topic/"
TOKENS = "/admin/delayed_queue_http/apitoken/"


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def rows(client: Client, url: str) -> list[str]:
    found = re.findall(r"<tr>.*?</tr>", page(client, url).partition("<tbody>")[2], re.DOTALL)
    return [text(each) for each in found]


def add(topic: str, count: int, **fields: object) -> None:
    jobs = [{"topic": topic, "jobId": f"{topic}-{n}", "body": n, **fields} for n in range(count)]
    add_jobs([job_from(each) for each in jobs])


def of(topic: str) -> str:
    return f"{TOPICS}{Topic.objects.get(name=topic).pk}/change/"


# Topics


def test_the_list_counts_the_jobs_of_all_shards_and_ways(admin_client: Client):
    configure_topic("orders", shards=3)
    add("orders", 5)
    add("orders", 0)
    add_jobs([job_from({"topic": "orders", "jobId": "u", "url": "https://example.com/"})])
    add_jobs([job_from({"topic": "orders", "jobId": "d", "delay": 900})])
    (popped, *_) = pop_jobs("orders", 1)
    (gone, *_) = pop_jobs("orders", 1)
    bury_job("orders", gone.job_id, gone.lease_token)

    assert rows(admin_client, TOPICS) == ["orders open 4 1 1 1 3"]
    assert popped.job_id != gone.job_id


def test_its_page_leads_to_the_limits_of_each_shard(admin_client: Client):
    configure_topic("orders", shards=2)
    shown = page(admin_client, of("orders"))
    found = re.findall(r'history/\?kind=([^"]+)">history and limits', shown)
    assert found == ["orders%7Cjson", "orders%231%7Cjson", "orders%7Ccallback"]


def test_a_topic_is_made_and_changed_by_a_form(admin_client: Client):
    admin_client.post(f"{TOPICS}add/", {"name": "refunds", "shards": "2"})
    assert read_topic("refunds").shards == 2
    admin_client.post(of("refunds"), {"shards": "4"})
    assert read_topic("refunds").shards == 4


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": "two words"}, "is invalid: use A-Z"),
        ({"shards": "65"}, "less than or equal to 64"),
    ],
)
def test_what_no_topic_can_be_is_refused_at_its_field(admin_client, change, error):
    answer = admin_client.post(f"{TOPICS}add/", {"name": "t", "shards": "1", **change})
    assert error in text(answer.content.decode())
    assert not Topic.objects.exists()


def test_adding_a_topic_that_exists_is_refused_and_changes_nothing(admin_client: Client):
    configure_topic("orders", shards=2)
    answer = admin_client.post(f"{TOPICS}add/", {"name": "orders", "shards": "3"})
    assert "already exists" in text(answer.content.decode())
    assert read_topic("orders").shards == 2


def test_shards_that_hold_jobs_do_not_go(admin_client: Client):
    configure_topic("orders", shards=8)
    add("orders", 40)
    answer = admin_client.post(of("orders"), {"shards": "1"})
    assert "cannot lose shards that hold jobs" in text(answer.content.decode())
    assert read_topic("orders").shards == 8


def test_pausing_asks_why_and_resuming_hands_out_again():
    add("orders", 1)
    client = operator("view_topic", "pause_queue")
    shown = tokens(page(client, TOPICS))
    assert "are you sure" in post(client, TOPICS, "pause", shown).content.decode()
    assert not is_paused("orders")

    answer = post(client, TOPICS, "pause", shown, confirmed="1", reason="bank is down")
    assert told(answer) == ["Paused 1 topic: orders."]
    assert pop_jobs("orders", 1) == []
    assert "bank is down" in rows(client, TOPICS)[0]
    answer = post(client, TOPICS, "pause", shown, confirmed="1")
    assert told(answer) == ["Skipped 1 topic, paused already: orders."]

    page(client, TOPICS)  # each message is shown once
    assert told(post(client, TOPICS, "resume", shown)) == ["Resumed 1 topic: orders."]
    assert len(pop_jobs("orders", 1)) == 1


def test_who_may_only_look_can_neither_change_nor_pause():
    add("orders", 1)
    pause_topic("orders")
    client = operator("view_topic")
    assert 'name="shards"' not in page(client, of("orders"))
    assert client.post(of("orders"), {"shards": "5"}).status_code == 403
    assert client.get(f"{TOPICS}add/").status_code == 403
    assert post(client, TOPICS, "resume", ["1"]).status_code == 403
    assert read_topic("orders").shards == 1


def test_dead_jobs_are_put_back_in_bulk_from_the_dead_letters(admin_client: Client):
    add("orders", 20)
    for popped in pop_jobs("orders", 20):
        bury_job("orders", popped.job_id, popped.lease_token)
    assert DeadLetter.objects.count() == 20
    shown = tokens(page(admin_client, LETTERS))
    post(admin_client, LETTERS, "redrive", shown)
    assert not DeadLetter.objects.exists()
    job = find_job("orders", "orders-3")
    assert job is not None
    assert (job.state, job.retry) == (JobState.READY, 0)


# Tokens


def test_a_new_token_is_shown_once_and_works(admin_client: Client):
    made = {
        "name": "billing",
        "verbs": ["add", "read"],
        "topics": "billing-*\nrefunds",
        "days": "2",
    }
    answer = admin_client.post(f"{TOKENS}add/", made, follow=True)
    (token,) = re.findall(r"<code>(dq_[\w-]{43})</code>", answer.content.decode())
    grant = find_grant(token)
    assert grant is not None
    assert grant.may("add", "billing-1")
    assert not grant.may("add", "orders")
    assert not grant.may("delete", "refunds")
    stored = ApiToken.objects.get()
    assert stored.expires_at is not None
    assert timedelta(days=1) < stored.expires_at - datetime.now(UTC) < timedelta(days=3)

    (row,) = rows(admin_client, TOKENS)
    assert "billing in force add, read billing-*, refunds" in row
    for url in (TOKENS, f"{TOKENS}{stored.pk}/change/"):
        assert token not in page(admin_client, url)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"verbs": ["rule"]}, "not one of the available choices"),
        ({"topics": "a*b"}, "prefixes that end in a star"),
        ({"rate": "0"}, "from 0.001"),
        ({"name": "taken"}, "already exists"),
    ],
)
def test_what_no_token_can_be_is_refused(admin_client, change, error):
    create_token("taken", verbs=["read"], topics=["*"])
    made = {"name": "new", "verbs": ["read"], "topics": "*", **change}
    answer = admin_client.post(f"{TOKENS}add/", made)
    assert error in text(answer.content.decode())
    assert ApiToken.objects.count() == 1


def test_revoking_is_for_good():
    token = create_token("old", verbs=["read"], topics=["*"])
    client = operator("view_apitoken", "revoke_apitoken")
    shown = tokens(page(client, TOKENS))
    assert "for good" in post(client, TOKENS, "revoke", shown).content.decode()
    assert find_grant(token) is not None
    assert told(post(client, TOKENS, "revoke", shown, confirmed="1")) == ["Revoked 1 token: old."]
    assert find_grant(token) is None
    assert "revoked" in rows(client, TOKENS)[0]
    assert client.get(f"{TOKENS}add/").status_code == 403
