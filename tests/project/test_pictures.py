"""The README's screenshots: `make pictures` takes them from a shop with a day of history.

Every run of the long tests takes them, so that the data still fits. ``README_PICTURES=directory``
keeps them.
"""

from __future__ import annotations

import math
import os
import random
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from delayed_queue.handlers import registry
from delayed_queue.models import Limit, Message, Sample, Worker
from delayed_queue.observe.store import last_sampled
from tests.support.browser import chromium
from tests.support.factories import DeadLetterFactory, MessageFactory, from_now

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.long]

HOLDERS: Final = ("0a1b2c3d", "4e5f6071", "8293a4b5")
QUEUES: Final = ("close-unpaid-orders", "receipts", "refunds", "search-index")
LIMIT_BYTES: Final = 100_000
WIDTH, HEIGHT = 1100, 640
WITHOUT_SIDEBAR: Final = """
document.querySelectorAll("#nav-sidebar, .toggle-nav-sidebar").forEach((each) => each.remove())
"""


@pytest.fixture(autouse=True)
def _handlers_of_the_shop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the handlers that only tests have."""
    shown = {name: each for name, each in registry.by_queue.items() if name in QUEUES}
    monkeypatch.setattr(registry, "by_queue", shown)


def test_pictures_of_the_readme(live_server: Any, tmp_path: Path) -> None:
    furnish()
    directory = Path(os.environ.get("README_PICTURES", tmp_path))
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("operator"))
    with chromium() as browser:
        browser.log_in(live_server.url, client.cookies["sessionid"].value)
        browser.look(width=WIDTH, height=HEIGHT)
        messages = reverse("admin:delayed_queue_message_changelist")
        for name, path in (
            ("overview", reverse("admin:delayed_queue_queues")),
            ("messages", f"{messages}?kind={QUEUES[0]}%7Cjson&state=leased"),
        ):
            browser.open(live_server.url + path)
            assert not browser.evaluate("document.querySelector('.errornote')")
            browser.evaluate(WITHOUT_SIDEBAR)
            picture = directory / f"{name}.png"
            browser.shoot(picture, HEIGHT)
            assert 10_000 < picture.stat().st_size <= LIMIT_BYTES


def furnish() -> None:
    """Fill a shop: four queues with a day of history, three workers, leases, a pause, failures."""
    rows = random.Random(4)  # the same data each time
    leases: list[str] = []
    for queue, due, leased, scheduled in zip(
        QUEUES, (3, 0, 0, 240), (14, 6, 2, 8), (900, 4, 120, 0), strict=True
    ):
        kind = f"{queue}|json"
        for state, count in (("due", due), ("leased", leased), ("scheduled", scheduled)):
            for _ in range(count):
                key = f"A-{rows.randrange(10_000, 99_999)}-{rows.randrange(1000)}"
                more = {}
                if state == "leased":
                    # A lease id starts with the id of the worker that holds it.
                    more["lease_id"] = HOLDERS[len(leases) % 3] + str(uuid4())[8:]
                    leases.append(more["lease_id"])
                MessageFactory.create(kind=kind, key=key, **{state: True}, **more)
    for number in range(12):
        DeadLetterFactory.create(
            kind="refunds|json", key=f"R-{number}", reason="attempts exhausted: GatewayTimeout",
            died_at=from_now(hours=-number),
        )  # fmt: skip
    Limit.objects.create(
        kind="refunds|json", paused_at=from_now(minutes=-40), paused_by="ada",
        reason="The bank is away until four.",
    )  # fmt: skip
    for number in range(3):
        Worker.objects.create(
            name=f"web-{number + 1}", host=f"web-{number + 1}", pid=4000 + number, process=0,
            queues=list(QUEUES), version="0.1.0", started_at=from_now(hours=-9),
            heartbeat_at=from_now(minutes=5), in_flight=10, done=184_000 + 977 * number,
            failed=213, dead=12, lost=0, rates=dict.fromkeys(QUEUES, 8.4),
            holder=HOLDERS[number],
        )  # fmt: skip
    _history()
    assert Message.objects.count() > 1000


def _history() -> None:
    now, _ = last_sampled()
    for back in range(1, 1441):
        Sample.objects.create(kind="", minute=now - back, versions="0.1.0", times=[])
        for number, queue in enumerate(QUEUES):
            wave = 1.2 + math.sin(back / (70 + 30 * number)) + 0.2 * math.sin(back / 7)
            Sample.objects.create(
                kind=f"{queue}|json", minute=now - back, due=int(40 * wave), scheduled=900,
                leased=12, dead=12 * (queue == "refunds"), late=int(3 * wave),
                done=int(500 * wave), failed=back % 5, died=int(back % 120 == 0),
                times=[(8 << 25) + 300, (12 << 25) + 20, (40 << 25) + 290, (44 << 25) + 9],
            )  # fmt: skip
