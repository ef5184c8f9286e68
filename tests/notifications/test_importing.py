"""Rows of a pipeline as notifications: the target of an import, and its check."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from django.db import connection

from delayed_queue.models import Message
from delayed_queue.notifications import intake, services
from delayed_queue.notifications.intake import NoLongerValid, check, import_rows
from delayed_queue.notifications.models import Notification
from delayed_queue.spark.pipeline.offers import _Delivery
from tests.notifications.requests import email, sms

pytestmark = pytest.mark.django_db


def row(key: str, request: Any, **values: Any) -> dict[str, Any]:
    """As the pipeline hands it over."""
    nothing = {"schedule_at": None, "delay": None, "headers": None}
    return {"queue": "spring", "key": key, "payload": request, **nothing, **values}


def test_rows_become_notifications_of_the_queues_name():
    counts = import_rows([row("a", email()), row("b", sms(), queue="autumn")])
    assert (counts.created, counts.updated, counts.ignored) == (2, 0, 0)
    found = Notification.objects.order_by("dedupe_key")
    assert [(each.tenant, each.source, each.dedupe_key) for each in found] == [
        ("spring", "import", "a"), ("autumn", "import", "b"),
    ]  # fmt: skip
    envelope = services.queue_of("normal", "sms").try_poll()
    assert envelope is not None
    assert envelope.key == str(found[1].id)


def test_a_partition_that_is_given_again_changes_nothing():
    rows = [row(f"k{number}", email()) for number in range(intake.BATCH + 1)]
    assert import_rows(rows[:-3]).created == intake.BATCH - 2
    again = import_rows(iter(rows))
    assert (again.created, again.ignored) == (3, intake.BATCH - 2)
    assert Notification.objects.count() == Message.objects.count() == len(rows)


def test_a_dedupe_key_of_the_requests_own_stays():
    import_rows([row("a", email(dedupeKey="mine")), row("b", email(dedupeKey=""))])
    keys = Notification.objects.order_by("dedupe_key").values_list("dedupe_key", flat=True)
    assert list(keys) == ["b", "mine"]


def test_the_time_of_the_row_is_kept_unless_the_request_has_one():
    at, other = (datetime(2031, 5, day, 12, tzinfo=UTC) for day in (1, 2))
    now = at - timedelta(days=1)
    requests = [email(), email(sendAt=other.isoformat()), email()]
    found = [intake.request_of(row("a", each, schedule_at=at)) for each in requests[:2]]
    assert [each["sendAt"] for each in found] == [at.isoformat(), other.isoformat()]
    later = intake.request_of(row("a", email(), delay=timedelta(hours=1)))["sendAt"]
    assert timedelta(minutes=59) < datetime.fromisoformat(later) - datetime.now(UTC) < at - now


def test_the_check_says_what_the_rest_interface_would():
    assert check(row("a", email())) == []
    assert check(row("a", email(to="ada"))) == [
        "to: is not an email address such as ada@example.org"
    ]
    assert check(row("a", "text")) == ["must be a JSON object"]
    assert import_rows.check is check  # type: ignore[attr-defined] # where the pipeline looks


def test_what_becomes_invalid_after_its_check_ends_the_import_and_stores_no_half_of_a_batch():
    rows = [row(f"k{number}", email()) for number in range(intake.BATCH)]
    late = [row("late", email(expiresAt="2001-01-01T00:00:00Z")), row("good", email())]
    with pytest.raises(NoLongerValid, match=r"^1 rows became invalid .* expiresAt is in the"):
        import_rows([*rows, *late])
    # What was committed stays, and is ignored when the import is repeated.
    assert import_rows(rows).ignored == intake.BATCH


@pytest.mark.django_db(transaction=True)
def test_an_executors_process_is_left_without_connections():
    columns = {
        "kind": "spring|json", "key": "a", "payload": b'{"channel": "sms"}', "schedule_ms": None,
        "delay_ms": 1000, "headers": None, "grouped": None,
    }  # fmt: skip
    delivery = _Delivery("delayed_queue.notifications.intake:import_rows", "json")
    with pytest.raises(NoLongerValid):
        list(delivery(iter([pa.RecordBatch.from_pylist([columns])])))
    assert connection.connection is None
    columns["payload"] = b'{"channel": "sms", "to": "+40721234567", "body": "Hello."}'
    [counted] = delivery(iter([pa.RecordBatch.from_pylist([columns])]))
    assert counted.to_pylist() == [{"created": 1, "updated": 0, "ignored": 0}]
    assert connection.connection is None
    assert Notification.objects.get().send_at > datetime.now(UTC) - timedelta(minutes=1)
