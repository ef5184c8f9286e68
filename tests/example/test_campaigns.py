"""The import target of the example: rows of a campaign become notifications."""

from __future__ import annotations

from typing import Any

import pytest

from delayed_queue.notifications.models import Notification
from example_project.campaigns import BATCH, check, import_rows
from tests.notifications.requests import email

pytestmark = pytest.mark.django_db


def row(key: str, request: Any) -> dict[str, Any]:
    return {"queue": "spring", "key": key, "payload": request}


def test_a_repeated_partition_changes_nothing():
    rows = [row(f"k{number}", email()) for number in range(BATCH + 1)]
    assert import_rows(rows[:-3]).created == BATCH - 2
    again = import_rows(iter(rows))
    assert (again.created, again.ignored) == (3, BATCH - 2)
    assert Notification.objects.filter(tenant="spring").count() == len(rows)


def test_invalid_rows_are_reported_before_and_refused_at_the_import():
    bad = row("a", email(to="ada"))
    assert check(row("a", email())) == []
    assert check(bad) == ["to: is not an email address such as ada@example.org"]
    assert import_rows.check is check  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="1 rows became invalid"):
        import_rows([row("b", email()), bad])
