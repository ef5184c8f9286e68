"""Schedules that operators create."""

from __future__ import annotations

from typing import Any

from django.test import Client

from delayed_queue.cron.keeper import CronKeeper
from delayed_queue.models import Message, Schedule
from tests.admin.support import post

SCHEDULES = "/admin/delayed_queue/schedule/"
FORM = {
    "queue": "reports", "key_prefix": "nightly", "type": "cron", "expression": "30 3 * * *",
    "timezone": "Europe/Bucharest", "gap": "shift", "fold": "", "missed": "latest",
    "missed_cap": "100", "payload": '{"n": 1}', "is_enabled": "on",
}  # fmt: skip
VIEW = "view_schedule"


def made(**options: Any) -> Schedule:
    fields: dict[str, Any] = {
        "kind": "reports|json", "key_prefix": "nightly", "queue": "reports", "type": "cron",
        "expression": "30 3 * * *", "timezone": "Europe/Bucharest", "payload": {"n": 1},
    }  # fmt: skip
    return Schedule.objects.create(**{**fields, **options})


def installed(**options: Any) -> Schedule:
    row = made(**options)
    CronKeeper(entries=[]).check()
    row.refresh_from_db()
    assert ticks()
    return row


def ticks() -> list[str]:
    # The example project has its own schedule.
    found = Message.objects.filter(kind="reports|json").order_by("key")
    return list(found.values_list("key", flat=True))


def url(row: Schedule, what: str = "change") -> str:
    return f"{SCHEDULES}{row.pk}/{what}/"


def errors(response: Any) -> dict[str, list[str]]:
    assert response.status_code == 200, response
    return dict(response.context["adminform"].form.errors)


def do(client: Client, action: str, *rows: Schedule) -> Any:
    return post(client, SCHEDULES, action, [str(row.pk) for row in rows])
