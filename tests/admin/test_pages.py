"""The admin's lists: their content, paging and limits."""

from __future__ import annotations

from html import unescape

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.test import Client

from delayed_queue.models import Message
from tests.admin.lists import MODELS, keys_of
from tests.admin.support import LETTERS, MESSAGES, page, tokens
from tests.support.factories import DeadLetterFactory, MessageFactory, from_now

pytestmark = pytest.mark.django_db


# Content of lists


@pytest.mark.parametrize(
    ("trait", "words"),
    [
        ("scheduled", ["dq-scheduled", "in 59 min"]),
        ("due", ["dq-due", "1 min", " late"]),
        ("leased", ["dq-leased", "4 min 5", " s left"]),
        ("expired", ["dq-expired", "lapsed 3", " s ago"]),
    ],
)
def test_list_says_the_state_and_the_time_left_in_words(admin_client, trait, words):
    message = MessageFactory.create(**{trait: True})
    html = page(admin_client, MESSAGES)

    assert all(word in html for word in words), html
    assert f'title="{message.scheduled_at:%Y-%m-%d %H:%M:%S}.' in html
    assert "10 min" in html  # its age


def test_queue_is_listed_in_the_order_of_delivery(admin_client: Client):
    for key, minutes in (("late", -3), ("last", 3), ("later", 1), ("due", -1)):
        MessageFactory.create(key=key, scheduled_at=from_now(minutes=minutes))
    MessageFactory.create(key="other", kind="other|json")

    assert keys_of(page(admin_client, f"{MESSAGES}?kind=orders|json")) == [
        "late", "due", "later", "last"
    ]  # fmt: skip


def test_all_queues_are_listed_newest_first(admin_client: Client):
    MessageFactory.create(key="old", scheduled=True)
    MessageFactory.create(key="new", kind="other|json")

    assert keys_of(page(admin_client, MESSAGES)) == ["new", "old"]


@pytest.mark.parametrize("state", ["scheduled", "due", "leased", "expired"])
def test_state_filter(admin_client: Client, state: str):
    for each in ("scheduled", "due", "leased", "expired"):
        MessageFactory.create(key=each, **{each: True})
    MessageFactory.create(key="other", kind="other|json", **{state: True})

    assert keys_of(page(admin_client, f"{MESSAGES}?kind=orders|json&state={state}")) == [state]


def test_leases_are_found_in_all_queues(admin_client: Client):
    MessageFactory.create(key="a", leased=True, lease_id="2")
    MessageFactory.create(key="b", leased=True, lease_id="1", kind="other|json")
    MessageFactory.create(key="c")

    assert keys_of(page(admin_client, f"{MESSAGES}?state=leased")) == ["b", "a"]


def test_filter_that_no_index_serves_is_neither_offered_nor_obeyed(admin_client: Client):
    MessageFactory.create(key="a")
    html = page(admin_client, MESSAGES)

    assert "state=leased" in html
    assert "state=due" not in html
    assert "choose a queue" in html
    assert admin_client.get(f"{MESSAGES}?state=due").headers["Location"] == f"{MESSAGES}?e=1"


def test_all_queues_drops_the_filters_and_a_search_all_but_the_queue(admin_client: Client):
    """A forgotten filter would hide the key."""
    MessageFactory.create()
    html = page(admin_client, f"{MESSAGES}?kind=orders|json&state=due")

    assert '<a href="?">All</a>' in html
    assert '<input type="hidden" name="kind" value="orders|json"' in html
    assert '<input type="hidden" name="state"' not in html


@pytest.mark.parametrize(
    ("factory", "url"), [(MessageFactory, MESSAGES), (DeadLetterFactory, LETTERS)]
)
def test_search_finds_the_exact_key_in_every_queue_and_nothing_else(admin_client, factory, url):
    for kind in ("a|json", "b|json"):
        for key in ("Key%1", "key%1", "Key%12", "KeyX1"):
            factory(key=key, kind=kind)

    assert keys_of(page(admin_client, f"{url}?q=key:Key%251")) == ["Key%1", "Key%1"]
    assert keys_of(page(admin_client, f"{url}?q=key:+Key%251%0A")) == ["Key%1", "Key%1"]
    assert keys_of(page(admin_client, f"{url}?q=key:Key%251&kind=a|json")) == ["Key%1"]
    assert "Nothing was found" in page(admin_client, f"{url}?q=key:Key")


@pytest.mark.parametrize(
    "query", ["?kind=a&after=x", "?kind=a&after=1", "?kind=a&after=1.x", "?state=x", "x/change/"]
)
def test_nonsense_in_the_url_is_no_server_error(admin_client: Client, query: str):
    assert admin_client.get(f"{MESSAGES}{query}").status_code == 302


PAGES = sorted(
    f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    for model in apps.get_models()
    if admin.site.is_registered(model)
)


@pytest.mark.parametrize("url", PAGES)
def test_ids_longer_than_python_reads_are_of_nothing(admin_client: Client, url: str):
    """Python refuses int() of 4,301 digits. Reports have one page, with the last one."""
    long = "9" * 4301
    for page_of in ("change", "history", "delete"):
        status = admin_client.get(f"{url}{long}/{page_of}/").status_code
        assert status in {302, 403, 404} or (status == 200 and "pipelinereport" in url)


@pytest.mark.parametrize(
    "lookup", ["payload__contains=x", "key__icontains=x", "id__gt=1", "kind__startswith=o"]
)
def test_lookups_of_ones_own_are_refused(admin_client: Client, lookup: str):
    """They would scan the table, or reveal a payload letter by letter."""
    MessageFactory.create()

    assert admin_client.get(f"{MESSAGES}?{lookup}").status_code == 400


# Paging


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for model, _ in MODELS:
        monkeypatch.setattr(admin.site.get_model_admin(model), "list_per_page", 3)


def walk(client: Client, url: str) -> list[list[str]]:
    """Return the keys of every page, following the links."""
    pages = []
    path = url.partition("?")[0]
    while True:
        html = page(client, url)
        pages.append(keys_of(html))
        _, found, rest = html.partition('<a href="?after=')
        if not found:
            return pages
        url = f"{path}?after={unescape(rest.partition(chr(34))[0])}"


@pytest.mark.parametrize(
    "query", ["", "kind=orders|json", "kind=orders|json&state=due", "state=leased", "q=same"]
)
@pytest.mark.usefixtures("short_pages")
def test_pages_hold_every_message_once(admin_client: Client, query: str):
    at = from_now(minutes=-1)
    for number in range(7):
        MessageFactory.create(key=f"due-{number}", scheduled_at=at)
        MessageFactory.create(
            key=f"held-{number}", leased=True, lease_id="one" if number < 4 else "two"
        )
        MessageFactory.create(key="same", kind=f"kind-{number}|json", scheduled=True)
    # An instant beyond datetime's range, as a service in another language may store.
    with connection.cursor() as cursor:
        cursor.execute("""UPDATE delayed_queue SET "scheduledAt" = -9e18 WHERE "pKey" < 'due-5'""")

    pages = walk(admin_client, f"{MESSAGES}?{query}")
    keys = [key for each in pages for key in each]

    expected = {
        "": 21, "kind=orders|json": 14, "kind=orders|json&state=due": 7, "state=leased": 7,
        "q=same": 7,
    }  # fmt: skip
    assert len(keys) == expected[query]
    assert len(set(keys)) == len(keys) or "same" in keys
    assert {len(each) for each in pages[:-1]} == {3}


@pytest.mark.parametrize("query", ["", "kind=orders|json", "q=same"])
@pytest.mark.usefixtures("short_pages")
def test_pages_hold_every_letter_once(admin_client: Client, query: str):
    died_at = from_now(minutes=-1)
    letters = [
        DeadLetterFactory.create(key="same", reason=f"r{n}", died_at=died_at) for n in range(7)
    ]

    assert [len(each) for each in walk(admin_client, f"{LETTERS}?{query}")] == [3, 3, 1]
    assert len(letters) == 7


@pytest.mark.usefixtures("short_pages")
def test_a_page_goes_on_where_it_ended_though_rows_went(admin_client: Client):
    """An offset would skip as many messages as were handled between the pages."""
    for number in range(7):
        MessageFactory.create(key=f"k{number}", scheduled_at=from_now(minutes=number - 10))
    html = page(admin_client, f"{MESSAGES}?kind=orders|json")
    link = unescape(html.partition('<a href="?after=')[2].partition('"')[0])
    Message.objects.filter(key__in=["k0", "k1", "k2"]).delete()

    assert keys_of(page(admin_client, f"{MESSAGES}?after={link}")) == ["k3", "k4", "k5"]


def test_select_all_across_pages_is_not_offered(admin_client: Client):
    Message.objects.bulk_create(MessageFactory.build_batch(150))
    html = page(admin_client, MESSAGES)

    assert len(tokens(html)) == 50
    assert "across all pages" not in html
    assert "more on the next" in html
