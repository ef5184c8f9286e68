"""The admin's pages: what they show, to whom, and what they leave alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.core.exceptions import FieldDoesNotExist
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from delayed_queue.admin.formats import human, relative, timeline
from delayed_queue.admin.payloads import MAX_READ, show_payload
from delayed_queue.models import DeadLetter, Message
from delayed_queue.overview import MAX_KINDS, cap_for
from tests.factories import DeadLetterFactory, MessageFactory, from_now
from tests.integration.admin_support import LETTERS, MESSAGES, QUEUES, operator, page, tokens

pytestmark = pytest.mark.django_db
MODELS = [(Message, MESSAGES), (DeadLetter, LETTERS)]
EVIL = "<script>alert(1)</script>"


def keys_of(html: str) -> list[str]:
    """The keys of a list, in order."""
    return [unescape(each.split("</span>")[0]) for each in html.split('<span class="dq-key">')[1:]]


# What a list shows


@pytest.mark.parametrize(
    ("trait", "words"),
    [
        ("scheduled", ["dq-scheduled", "in 59 min"]),
        ("due", ["dq-due", "1 min late"]),
        ("leased", ["dq-leased", "4 min 59 s left"]),
        ("expired", ["dq-expired", "lapsed 30 s ago"]),
    ],
)
def test_list_says_the_state_and_the_time_left_in_words(
    admin_client: Client, trait: str, words: list[str]
):
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
    assert admin_client.get(f"{LETTERS}?died=hour").headers["Location"] == f"{LETTERS}?e=1"


def test_all_queues_again_drops_the_filter_that_needs_one(admin_client: Client):
    MessageFactory.create()
    html = page(admin_client, f"{MESSAGES}?kind=orders|json&state=due")

    assert '<a href="?">All</a>' in html


@pytest.mark.parametrize(
    ("died", "keys"),
    [
        ("hour", ["minutes"]),
        ("day", ["minutes", "hours"]),
        ("week", ["minutes", "hours", "days"]),
        ("older", ["weeks"]),
    ],
)
def test_letters_by_time_of_death(admin_client: Client, died: str, keys: list[str]):
    for unit in ("weeks", "days", "hours", "minutes"):
        DeadLetterFactory.create(key=unit, died_at=from_now(**{unit: -3}))

    assert keys_of(page(admin_client, f"{LETTERS}?kind=orders|json&died={died}")) == keys


@pytest.mark.parametrize(
    ("factory", "url"), [(MessageFactory, MESSAGES), (DeadLetterFactory, LETTERS)]
)
def test_search_finds_the_exact_key_in_every_queue_and_nothing_else(
    admin_client: Client, factory: Any, url: str
):
    for kind in ("a|json", "b|json"):
        for key in ("Key%1", "key%1", "Key%12", "KeyX1"):
            factory(key=key, kind=kind)

    assert keys_of(page(admin_client, f"{url}?q=Key%251")) == ["Key%1", "Key%1"]
    assert keys_of(page(admin_client, f"{url}?q=+Key%251%0A")) == ["Key%1", "Key%1"]
    assert keys_of(page(admin_client, f"{url}?q=Key%251&kind=a|json")) == ["Key%1"]
    assert "has exactly this key" in page(admin_client, f"{url}?q=Key")


def test_search_form_forgets_the_filters(admin_client: Client):
    """Or a forgotten filter would say that a key is not there."""
    MessageFactory.create()
    html = page(admin_client, f"{MESSAGES}?kind=orders|json&state=due")

    assert '<input type="hidden" name="kind"' not in html
    assert '<input type="hidden" name="state"' not in html


@pytest.mark.parametrize(
    "query", ["q=%00", "kind=%00", "after=x", "after=1", "after=1.x", "state=x"]
)
def test_nonsense_in_the_url_is_no_server_error(admin_client: Client, query: str):
    url = f"{MESSAGES}?kind=orders|json&{query}"

    assert admin_client.get(url).status_code in {200, 302}


def test_ids_out_of_range_are_no_server_error(admin_client: Client):
    assert admin_client.get(f"{MESSAGES}?after={10**30}").status_code == 302
    assert admin_client.get(f"{MESSAGES}{10**30}/change/").status_code == 302
    assert admin_client.get(f"{MESSAGES}x/change/").status_code == 302


@pytest.mark.parametrize(
    "lookup", ["payload__contains=x", "key__icontains=x", "id__gt=1", "kind__startswith=o"]
)
def test_lookups_of_ones_own_are_refused(admin_client: Client, lookup: str):
    """They would scan the table, or spell out a payload letter by letter."""
    MessageFactory.create()

    assert admin_client.get(f"{MESSAGES}?{lookup}").status_code == 400


# Paging


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for model, _ in MODELS:
        monkeypatch.setattr(admin.site.get_model_admin(model), "list_per_page", 3)


def walk(client: Client, url: str) -> list[list[str]]:
    """The keys of every page, following the links."""
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
    # An instant that no datetime holds, as a service of another language may store.
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
    """An offset would pass over as many messages as were handled meanwhile."""
    for number in range(7):
        MessageFactory.create(key=f"k{number}", scheduled_at=from_now(minutes=number - 10))
    html = page(admin_client, f"{MESSAGES}?kind=orders|json")
    link = unescape(html.partition('<a href="?after=')[2].partition('"')[0])
    Message.objects.filter(key__in=["k0", "k1", "k2"]).delete()

    assert keys_of(page(admin_client, f"{MESSAGES}?after={link}")) == ["k3", "k4", "k5"]


# What is not done to the hot table


@pytest.mark.parametrize(
    "url",
    [
        MESSAGES, f"{MESSAGES}?kind=orders|json", f"{MESSAGES}?kind=orders|json&state=due",
        f"{MESSAGES}?state=leased", f"{MESSAGES}?q=x", f"{MESSAGES}?_facets=True",
        f"{MESSAGES}?all=", f"{MESSAGES}?o=1.-2", f"{MESSAGES}?p=2", LETTERS, QUEUES,
    ],
)  # fmt: skip
def test_no_list_counts_or_sorts_the_table(admin_client: Client, url: str):  # W14
    """The same statements for 3 messages as for 300, each with a limit."""
    MessageFactory.create_batch(3, leased=True)
    few = statements(admin_client, url)
    Message.objects.bulk_create(MessageFactory.build_batch(300))
    many = statements(admin_client, url)

    assert len(few) == len(many) <= 9
    for statement in many:
        assert "DISTINCT" not in statement
        assert "OFFSET" not in statement
        if 'FROM "delayed_queue' in statement:
            assert "COUNT(" not in statement.upper()
            assert statement.endswith(" LIMIT 101")
            assert "payload" not in statement


def statements(client: Client, url: str) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        page(client, url)
    return [each["sql"].strip() for each in queries]


@pytest.mark.parametrize("url", [MESSAGES, LETTERS])
def test_detail_page_runs_as_many_statements_however_full_the_queue(admin_client: Client, url: str):
    row: Any = (
        MessageFactory.create(key="k") if url == MESSAGES else DeadLetterFactory.create(key="k")
    )
    page(admin_client, f"{url}{row.pk}/change/")  # looks content types up, once and for all
    few = statements(admin_client, f"{url}{row.pk}/change/")
    MessageFactory.create_batch(30)
    DeadLetterFactory.create_batch(30)

    assert len(statements(admin_client, f"{url}{row.pk}/change/")) == len(few) <= 5


def test_select_all_across_pages_is_not_offered(admin_client: Client):
    Message.objects.bulk_create(MessageFactory.build_batch(150))
    html = page(admin_client, MESSAGES)

    assert len(tokens(html)) == 100
    assert "across all pages" not in html
    assert "more on the next" in html


# The detail page


def test_detail_shows_errors_headers_and_what_is_to_come(admin_client: Client):
    message = MessageFactory.create(
        leased=True, headers={"tenant": "acme"}, first_error="first trouble", last_error="last one"
    )
    html = page(admin_client, f"{MESSAGES}{message.pk}/change/")

    for words in (
        "first trouble", "last one", "&quot;tenant&quot;: &quot;acme&quot;", message.lease_id,
        "offered", "fell due for the last delivery", "now", "lease ends",
    ):  # fmt: skip
        assert str(words) in html


def test_letter_shows_reason_errors_and_whether_its_key_lives_again(admin_client: Client):
    letter = DeadLetterFactory.create(reason="no such order", last_error="Traceback\nValueError")
    html = page(admin_client, f"{LETTERS}{letter.pk}/change/")
    assert "no such order" in html
    assert "Traceback\nValueError" in html
    assert "no message has this key" in html

    message = MessageFactory.create(key=letter.key)
    assert f"{MESSAGES}{message.pk}/change/" in page(admin_client, f"{LETTERS}{letter.pk}/change/")


def test_message_that_went_leads_back_to_the_list(admin_client: Client):
    message = MessageFactory.create()
    Message.objects.all().delete()
    response = admin_client.get(f"{MESSAGES}{message.pk}/change/", follow=True)

    assert response.redirect_chain == [(MESSAGES, 302)]
    assert "it was handled, moved or dropped since" in response.content.decode()


@pytest.mark.parametrize(("model", "url"), MODELS)
def test_no_page_shows_a_field_by_its_own_name(model: Any, url: str):
    """Django would show the model's field, the payload too, in place of the admin's method."""
    shown = admin.site.get_model_admin(model).readonly_fields
    for name in shown:
        with pytest.raises(FieldDoesNotExist):
            model._meta.get_field(name)


@pytest.mark.parametrize("factory", [MessageFactory, DeadLetterFactory])
def test_payload_needs_its_permission(factory: Any):
    row = factory(payload=b'{"secret":"4711-0815"}')
    url = f"{MESSAGES if factory is MessageFactory else LETTERS}{row.pk}/change/"
    viewer = operator("view_message", "view_deadletter")
    reader = operator("view_message", "view_deadletter", "view_payload")

    assert "4711-0815" in page(reader, url)
    with CaptureQueriesContext(connection) as queries:
        html = page(viewer, url)
    assert "4711-0815" not in html
    assert "22 bytes, hidden: needs the permission delayed_queue.view_payload" in html
    assert not any("4711-0815" in each["sql"] or "substring" in each["sql"] for each in queries)


@pytest.mark.parametrize("factory", [MessageFactory, DeadLetterFactory])
def test_everything_is_escaped(admin_client: Client, factory: Any):
    row = factory(
        key=f"key {EVIL}", kind=f"{EVIL}|json", payload=json.dumps(EVIL).encode(),
        headers={EVIL: EVIL}, first_error=EVIL, last_error=EVIL,
        **({"reason": EVIL} if factory is DeadLetterFactory else {"lease_id": EVIL}),
    )  # fmt: skip
    base = MESSAGES if factory is MessageFactory else LETTERS

    for url in (
        base,
        f"{base}?q={EVIL}",
        f"{base}{row.pk}/change/",
        f"{base}{row.pk}/history/",
        QUEUES,
    ):
        html = page(admin_client, url)
        assert EVIL not in html
        assert "&lt;script&gt;" in html
    posted = admin_client.post(
        base, {"action": "drop", "_selected_action": tokens(page(admin_client, base))}
    )
    assert EVIL not in posted.content.decode()
    assert "&lt;script&gt;" in posted.content.decode()


# Payloads


@pytest.mark.parametrize(
    ("kind", "payload", "shown", "note"),
    [
        ("q|json", b'{"b":[1],"a":"\xc3\xa9"}', '{\n  "b": [\n    1\n  ],', "18 bytes of JSON"),
        ("q|json", b'{"b":[1],"a":"\xc3\xa9"}', '"a": "é"', "indented"),
        ("q|json", b"{broken", "{broken", "not readable as JSON"),
        ("q|json", b"\xff\xfe{broken", "ff fe 7b", "shown in hexadecimal, not readable as JSON"),
        ("q|json", rb'"\ud800"', r"\ud800", "of JSON"),
        ("q|json", b"[" * 100_000, "[[[[", "not readable as JSON"),
        ("q|json", b"9" * 5000, "9999", "not readable as JSON"),
        ("q|text", "grüße 👩‍🚀".encode(), "grüße 👩‍🚀", "of text"),
        ("q|text", b"\xff", "ff", "hexadecimal"),
        ("q|text", b"a\x00b", "61 00 62", "hexadecimal"),
        ("q|bytes", b"\x89PNG\r\n", "89 50 4e", "hexadecimal"),
        ("7ab2b0dfa43e1a1f12169da88468fb53", b"from the JVM", "from the JVM", "12 bytes of text"),
        ("q|msgpack", b"", "", "0 bytes"),
    ],
)  # fmt: skip
def test_payload_is_readable_whatever_it_is(
    admin_client: Client, kind: str, payload: bytes, shown: str, note: str
):
    message = MessageFactory.create(kind=kind, payload=payload)
    html = unescape(page(admin_client, f"{MESSAGES}{message.pk}/change/"))

    assert shown in html
    assert note in html


def test_long_payload_is_cut_and_says_so(admin_client: Client):
    message = MessageFactory.create(payload=json.dumps("x" * 20_000).encode())
    html = page(admin_client, f"{MESSAGES}{message.pk}/change/")

    assert "20,002 bytes of JSON, indented; the first 10,000 characters are shown." in html
    assert html.count("x" * 100) <= 100


def test_huge_payload_is_never_fetched_whole(admin_client: Client):
    size = 2 * MAX_READ
    message = MessageFactory.create(payload=b'"' + "é".encode() * MAX_READ + b'"')
    html = page(admin_client, f"{MESSAGES}{message.pk}/change/")

    assert f"{size + 2:,} bytes of text, too large to be read as JSON here" in html
    assert len(html) < 60_000


def test_json_that_indentation_would_blow_up_is_cut_early():
    deep = b"[" * 500 + b",".join([b"[]"] * 300_000) + b"]" * 500

    assert len(show_payload("q|json", deep, len(deep))) < 12_000


def test_long_error_shows_its_end(admin_client: Client):
    message = MessageFactory.create(last_error="start " + "x" * 20_000 + " ValueError: at the end")
    html = page(admin_client, f"{MESSAGES}{message.pk}/change/")

    assert "ValueError: at the end" in html
    assert "start xxx" not in html


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
    monkeypatch.setattr("delayed_queue.overview._CAPS", (3,))
    monkeypatch.setattr("delayed_queue.overview.LEASE_CAP", 3)
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


# Words


@pytest.mark.parametrize(
    ("span", "words"),
    [
        ({"milliseconds": 300}, "under 1 s"),
        ({"seconds": 59}, "59 s"),
        ({"seconds": -61}, "1 min 1 s"),
        ({"hours": 1, "seconds": 5}, "1 h"),
        ({"days": 3, "hours": 4, "minutes": 5}, "3 d 4 h"),
        ({"days": 400}, "1 y 34 d"),
        ({"days": 2_000_000}, "5,475 y 256 d"),
    ],
)
def test_durations_in_words(span: dict[str, int], words: str):
    assert human(timedelta(**span)) == words


def test_timeline_puts_now_in_its_place():
    now = datetime(2024, 1, 1, 12, tzinfo=UTC)
    html = timeline([(now + timedelta(hours=1), "due"), (now - timedelta(hours=1), "offered")], now)

    assert html.index("offered") < html.index("now") < html.index("due")
    assert relative(now + timedelta(hours=1), now) == "in 1 h"
    assert relative(now, now + timedelta(hours=1)) == "1 h ago"
