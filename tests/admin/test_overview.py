"""The overview: one chart of all queues, folded idle queues, the project's time zone (O22)."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

import pytest
from django.test import Client

from delayed_queue.handlers import registry
from delayed_queue.models import Sample
from delayed_queue.observe.store import last_sampled
from tests.admin.support import MESSAGES, QUEUES, page
from tests.support.factories import MessageFactory

pytestmark = pytest.mark.django_db
EMPTY = {"due": 0, "scheduled": 0, "leased": 0, "dead": 0, "late": 0}


def test_o22_the_overview_starts_with_one_chart_of_all_queues(admin_client: Client):
    MessageFactory.create(kind="orders|json", due=True)
    MessageFactory.create(kind="mail|json", due=True)
    now, _last = last_sampled()
    for minute in (now - 1, now - 2, now - 4):
        Sample.objects.create(kind="", minute=minute, versions="1", times=[])
        for kind, counts in (
            ("orders|json", {"due": 5, "done": 100, "failed": 3, "died": 1}),
            ("mail|json", {"due": 7, "done": 10}),
        ):
            Sample.objects.create(kind=kind, minute=minute, times=[], **EMPTY | counts)
    html = page(admin_client, QUEUES)
    rates, backlog = re.findall(r'<svg class="dq-chart".*?</svg>', html)

    assert html.index('class="dq-chart"') < html.index("dq-overview")
    assert "All queues, a minute: done 110 at most, 110 last; failures 4 at most, 4 last." in rates
    # Four minutes since the first sample, of which one is unknown: a gap without values.
    for chart in (rates, backlog):
        assert 'viewBox="0 -4 3 ' in chart
        assert chart.count('class="dq-hover"') == 3
        assert chart.count('class="dq-gap"') == 1
    assert ": done 110, failures 4</title>" in rates
    # A backlog has its own scale.
    assert ": due 12</title>" in backlog


def test_o22_without_samples_there_is_no_chart(admin_client: Client):
    MessageFactory.create(due=True)
    assert "dq-chart" not in page(admin_client, QUEUES)


def test_o22_idle_queues_are_folded_and_json_is_not_named(admin_client: Client):
    idle = len(list(registry))
    MessageFactory.create(kind="busy|json", due=True)
    MessageFactory.create(kind="odd|avro", due=True)
    html = page(admin_client, QUEUES)
    shown, _, folded = html.partition('<details class="dq-idle">')
    assert ">busy</a>" in shown
    assert "busy" not in folded
    assert f"{idle} idle queue" in folded
    assert '<span class="dq-quiet">avro</span>' in shown
    assert '<span class="dq-quiet">json</span>' not in html


def test_o22_times_are_in_the_zone_of_the_project_with_utc_on_hover(admin_client, settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    message = MessageFactory.create(scheduled=True)
    html = page(admin_client, f"{MESSAGES}{message.pk}/change/")
    local = message.scheduled_at.astimezone(ZoneInfo("Asia/Kolkata"))
    instant = f"{message.scheduled_at:%Y-%m-%d %H:%M:%S}"
    assert re.search(rf'title="[^"]*{instant}[^"]* UTC">{local:%Y-%m-%d %H:%M:%S}', html)
    history = page(admin_client, f"{QUEUES}history/?kind=orders|json")
    assert "Times in Asia/Kolkata, UTC on hover" in history
