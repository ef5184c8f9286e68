"""The page of all queues: their messages, counted up to a limit (O2, O3)."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import count as counter
from typing import Final

import pytest
from croniter import croniter
from django.db import connection
from django.test import Client
from django.utils.html import escape
from django.utils.translation import override

from delayed_queue import DelayedQueue, Groups, ScheduledMessage
from delayed_queue.admin import overview
from delayed_queue.models import Limit, QueueOverview, Sample, Schedule, Worker
from delayed_queue.observe.overview import MAX_KINDS, cap_for
from delayed_queue.observe.snapshots import Snapshot, oldest_snapshot
from delayed_queue.observe.store import last_sampled
from tests.admin.lists import keys_of
from tests.admin.support import LETTERS, MESSAGES, QUEUES, operator, page
from tests.support.concurrency import raw_connection
from tests.support.factories import DeadLetterFactory, MessageFactory, from_now, worker_row
from tests.support.processes import wait_until

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
        (each.depth.name.queue, [str(count) for count in each.depth.counts.values()], each.is_late)
        for each in lines
    ] == [
        ("late", ["1", "0", "0", "0"], True),
        ("orders", ["2", "3", "1", "0"], False),
        ("gone", ["0", "0", "0", "1"], False),
    ]
    assert "2 h late" in response.content.decode()
    assert "?kind=orders%7Cjson&amp;state=due" in response.content.decode()


def test_counts_stop_at_the_cap_and_say_so(admin_client: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("delayed_queue.observe.overview.EXACT", 3)
    monkeypatch.setattr("delayed_queue.observe.overview.LEASE_CAP", 3)
    with connection.cursor() as cursor:
        # The sample would include pages that other tests have filled.
        cursor.execute("TRUNCATE delayed_queue, delayed_queue_dead_letter")
    MessageFactory.create_batch(4, due=True)
    MessageFactory.create_batch(4, scheduled=True)
    MessageFactory.create_batch(4, leased=True, kind="held|json")
    DeadLetterFactory.create_batch(4)
    lines = admin_client.get(QUEUES).context["lines"]

    depths = {each.depth.name.queue: each.depth for each in lines}
    orders, held = depths["orders"], depths["held"]
    # Some of the due messages may be leased: the page has not read all leases.
    assert [str(each) for each in (orders.due, orders.scheduled, orders.dead)] == [
        "3+",
        "≈ 3",
        "3+",
    ]
    assert (str(held.leased), str(held.scheduled)) == ("3+", "0+")


@pytest.mark.parametrize(("queues", "cap"), [(0, 10_000), (6, 10_000), (7, 5_000), (100, 1_000)])
def test_with_many_queues_each_is_counted_less_far(queues: int, cap: int):
    assert cap_for(queues) == cap


def test_only_so_many_queues_are_shown_and_it_says_so(admin_client: Client):
    for number in range(MAX_KINDS + 1):
        MessageFactory.create(kind=f"kind-{number}|json")
    html = page(admin_client, QUEUES)

    assert f"Only {MAX_KINDS} queues are shown" in html
    assert page(admin_client, MESSAGES).count(">kind-") >= MAX_KINDS
    # A queue beyond the limit still has a page.
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


def test_the_queues_come_first_where_the_admin_lists_its_pages(admin_client: Client):
    """On the home page, in the sidebar and in the app's index, if the user may see messages."""
    for url in ("/admin/", QUEUES, "/admin/delayed_queue/"):
        links = re.findall(r'<a href="(/admin/delayed_queue/\w+/)"', page(admin_client, url))
        assert links[0] == QUEUES
    assert QUEUES not in page(operator("view_deadletter"), "/admin/")


def test_r6_the_path_above_the_page_names_queues_where_a_theme_builds_it(admin_client: Client):
    """Unfold takes it from the model of the page."""
    for url in (QUEUES, f"{QUEUES}history/?kind=orders%7Cjson"):
        assert admin_client.get(url).context["opts"].model is QueueOverview


def test_the_title_says_what_is_wrong(admin_client: Client):
    assert "<h1>All queues in order</h1>" in page(admin_client, QUEUES)
    MessageFactory.create(kind="late|json", scheduled_at=from_now(hours=-2))
    MessageFactory.create(kind="stopped|json", scheduled_at=from_now(hours=-2))
    Limit.objects.create(kind="stopped|json", paused_at=from_now(hours=-1))
    DeadLetterFactory.create_batch(2, kind="late|json")
    now = from_now()
    Worker.objects.create(name="w", host="h", pid=1, queues=[], version="1", started_at=now,
                          heartbeat_at=from_now(minutes=-5))  # fmt: skip
    html = page(admin_client, QUEUES)
    wrong = "1 queue late, 1 without a worker, 2 dead, 1 worker silent, 1 paused"
    assert f"<h1>{wrong}</h1>" in html
    assert f"<title>{wrong} |" in html
    # Operators without the permission to see dead letters see no count of them.
    assert "2 dead" not in page(operator("view_message"), QUEUES)


def test_a_queue_of_twenty_thousand_shows_an_estimate(admin_client: Client):  # O3
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO delayed_queue (
                "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
            ) SELECT n, 'big|json', '1', 0, 0, 0 FROM generate_series(1, 20000) AS n"""
        )
    depths = [each.depth for each in admin_client.get(QUEUES).context["lines"]]
    (depth,) = [each for each in depths if each.kind == "big|json"]
    assert depth.due.is_estimated
    assert 16_000 < depth.due.value < 24_000


# The trends, and a queue's history


def sampled(*, minutes: int = 5, kind: str = "orders|json", ago: int = 1) -> None:
    now, _ = last_sampled()
    for each in range(ago, ago + minutes):
        Sample.objects.create(kind="", minute=now - each, versions="1.0", times=[])
        Sample.objects.create(
            kind=kind, minute=now - each, due=each, scheduled=0, leased=0, dead=0, late=each,
            done=60, failed=1, times=[(8 << 25) + 30, (40 << 25) + 30],
        )  # fmt: skip


def test_each_queue_has_its_trends(admin_client: Client):
    MessageFactory.create(kind="orders|json", due=True)
    sampled()
    html = page(admin_client, QUEUES)
    assert "<title>Due in an hour: 1 now</title>" in html
    assert "<title>Most overdue in an hour: " in html
    assert f'href="{QUEUES}history/?kind=orders%7Cjson"' in html
    assert "No worker has taken samples" not in html


def test_without_workers_the_page_says_so_instead_of_drawing_zero(admin_client: Client):
    MessageFactory.create(kind="orders|json", due=True)
    sampled(ago=30)
    # 31 if a minute ends between the two.
    assert re.search("No worker has taken samples for 3[01] min.", page(admin_client, QUEUES))
    html = page(admin_client, f"{QUEUES}history/?kind=orders|json")
    assert "No worker has taken samples since" in html
    assert "dq-gap" in html


@pytest.mark.parametrize("span", ["1h", "6h", "24h", "7d"])
def test_the_history_of_a_queue_is_drawn_and_written(admin_client: Client, span: str):
    sampled(minutes=30)
    html = page(admin_client, f"{QUEUES}history/?kind=orders|json&range={span}")
    for title in ("Due and leased", "In and out", "Lateness", "Run time", "Failures", "Dead"):
        assert f"<figcaption>{title}" in html
    assert re.search(r'<path class="dq-line dq-of-due" d="M', html)
    assert "<title>Due and leased: due 30 at most, " in html
    assert "<style" not in html.partition("dq-charts")[2]
    assert " style=" not in html.partition("dq-charts")[2]
    # No inline script: a policy of script-src 'self' forbids it.
    assert re.findall(r"<script(?![^>]* src=)(?![^>]*json)[^>]*>", html) == []
    assert re.findall(r"\son\w+=", html) == []


def test_schedules_and_deploys_are_marked(admin_client: Client):
    sampled(minutes=20)
    last = Sample.objects.filter(kind="").order_by("-minute")[:5]
    Sample.objects.filter(kind="", minute__in=[each.minute for each in last]).update(versions="1.1")
    Schedule.objects.create(
        kind="orders|json", queue="orders", key_prefix="quarterly", type="cron",
        expression="*/15 * * * *", timezone="UTC",
    )  # fmt: skip
    Schedule.objects.create(
        kind="orders|json", queue="orders", key_prefix="too-often", type="cron",
        expression="* * * * *", timezone="UTC",
    )  # fmt: skip
    html = page(admin_client, f"{QUEUES}history/?kind=orders|json")
    assert "workers of version 1.1</title>" in html
    assert html.count('class="dq-mark dq-of-deploy"') == html.count("<figure")
    assert html.count(" quarterly</title>") == 4 * html.count("<figure")
    places = map(float, re.findall(r'class="dq-mark [\w-]+" d="M([\d.]+) ', html))
    widths = map(float, re.findall(r'class="dq-chart" viewBox="0 -4 ([\d.]+) ', html))
    assert max(places) <= min(widths)
    every_two_hours = page(admin_client, f"{QUEUES}history/?kind=orders|json&range=7d")
    assert "too-often" not in every_two_hours


def test_ticks_of_frequent_schedules_are_not_worked_out_by_croniter(admin_client, monkeypatch):
    for each in range(10):
        Schedule.objects.create(
            kind="orders|json", queue="orders", key_prefix=f"often-{each}", type="cron",
            expression=f"*/{each + 1} * * * *", timezone="UTC",
        )  # fmt: skip
    get_next, calls = croniter.get_next, counter()
    monkeypatch.setattr(
        croniter, "get_next", lambda *given, **more: (next(calls), get_next(*given, **more))[1]
    )
    html = page(admin_client, f"{QUEUES}history/?kind=orders|json&range=7d")
    assert "often" not in html
    # One call per distinct expression, and one per day of each schedule: not its 61 ticks.
    assert next(calls) <= 3 * 10


def test_g9_the_page_of_a_queue_lists_its_groups_that_are_held_back(admin_client: Client):
    url, queue = f"{QUEUES}history/?kind=orders|json", DelayedQueue("orders")
    queue.offer_batch(
        [ScheduledMessage(key, None, group=key[0]) for key in ("a1", "a2", "b1", "c1")]
    )
    assert "held back" not in page(admin_client, url)
    queue.groups.set(Groups(concurrency=1))
    assert "held back" not in page(admin_client, url)  # no table with nothing but headings
    queue.groups.limit("c", rate="1/d")
    queue.groups.pause("b", "moving <house>", by="ana")
    queue.groups.pause("nobody-yet")
    assert len(queue.try_poll_many(5)) == 2
    queue.offer_or_update("c2", None, group="c")
    html = page(admin_client, url)
    for cell in ("a</td>", "full", "1 / 1", "paused: ana, moving &lt;house&gt;", "nobody-yet"):
        assert cell in html


def test_a_history_is_only_for_those_who_may_see_messages(admin_client: Client):
    url = f"{QUEUES}history/?kind=orders|json"
    assert "Dead letters: dead" not in page(operator("view_message"), url)
    assert admin_client.get(f"{QUEUES}history/?kind=").status_code == 400
    assert admin_client.get(f"{url}&range=1y").status_code == 400
    assert operator("view_deadletter").get(url).status_code == 403


def test_letters_are_not_counted_for_those_who_may_not_see_them():
    DeadLetterFactory.create(kind="gone|json")

    assert LETTERS not in page(operator("view_message"), QUEUES)


# Holders of old snapshots


def test_an_old_snapshot_is_named_with_what_would_end_it(admin_client, monkeypatch):
    """O5: the queues page warns of an old snapshot, and ignores a young one.

    Sessions of other tests, which write in databases of their own, may be older than the holder.
    """
    with raw_connection() as holder:
        holder.execute("SET application_name = 'nightly <report>'")
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        monkeypatch.setattr(overview, "OLD", timedelta(days=1))
        young = admin_client.get(QUEUES).content.decode()
        monkeypatch.setattr(overview, "OLD", timedelta(0))
        wait_until(lambda: names_the_oldest(admin_client.get(QUEUES).content.decode()))
    assert "dq-notice" not in young


# Within one transaction PostgreSQL reads statistics once.
@pytest.mark.django_db(transaction=True)
def test_what_a_claim_pays_for_it_is_said_when_it_is_something(admin_client, monkeypatch):
    monkeypatch.setattr(overview, "OLD", timedelta(0))

    def is_said() -> bool:
        said = "A claim from the start of the queue orders takes 1,544 ms."
        return said in admin_client.get(QUEUES).content.decode()

    worker_row(queues=["orders"], scanned="orders", scan_seconds=1.5436)
    with raw_connection() as holder, raw_connection() as other:
        # Without VACUUM: sessions of other tests may keep dead rows of earlier tests.
        other.execute("TRUNCATE delayed_queue")
        other.execute("SELECT pg_stat_force_next_flush()")
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        assert not is_said()
        other.execute(
            """INSERT INTO delayed_queue (
                "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
            ) SELECT n, 'dead', '', 0, 0, 0 FROM generate_series(1, 2000) AS n"""
        )
        other.execute("DELETE FROM delayed_queue WHERE \"pKind\" = 'dead'")
        other.execute("SELECT pg_stat_force_next_flush()")
        wait_until(is_said)


SESSION: Final = Snapshot(
    "session", "42", "report", "ana", "active", "other", 420.0, 1234, 5, "", 0, 0
)
PREPARED: Final = SESSION._replace(
    holder="prepared transaction", name="x", application="", owner="", state="", seconds=None
)
STANDBY: Final = PREPARED._replace(holder="standby", name="7", elsewhere="")


@pytest.mark.parametrize(
    ("snapshot", "language", "holder", "place"),
    [
        (SESSION, "en", "session 42 (report, user ana, active, database other), "
         "for 7 min (1,234 transactions)", ""),
        (SESSION, "de", "Sitzung 42 (report, Benutzer ana, active, Datenbank other), "
         "seit 7 min (1.234 Transaktionen)", ""),
        (STANDBY._replace(transactions=1), "de", "Standby 7, seit 1 Transaktion",
         "auf dem Standby"),
        (PREPARED, "en", "prepared transaction x (database other), for 1,234 transactions",
         "in the database other"),
        (PREPARED, "de", "vorbereitete Transaktion x (Datenbank other), seit 1.234 Transaktionen",
         "in der Datenbank other"),
        (STANDBY, "de", "Standby 7, seit 1.234 Transaktionen", "auf dem Standby"),
    ],
)  # fmt: skip
def test_its_holder_is_named_in_the_language_of_the_page(snapshot, language, holder, place):
    with override(language):
        assert (overview.holder_of(snapshot), snapshot.place) == (holder, place)


def names_the_oldest(shown: str) -> bool:
    """True if the page names the holder of the oldest snapshot and the statement that ends it."""
    oldest = oldest_snapshot()
    assert oldest is not None
    who = escape(str(oldest).rpartition(", for ")[0])
    return f"held by {who}" in shown and escape(oldest.remedy) in shown
