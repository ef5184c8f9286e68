"""Outcomes of callbacks, from their log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from delayed_queue.http.models import CallbackAttempt
from delayed_queue.models import Message
from tests.http.callbacks.delivering import make_due

SECOND = timedelta(seconds=1)


def is_empty_when_due() -> bool:
    make_due()
    return not Message.objects.exists()


def has_way(way: tuple[Any, ...]) -> bool:
    return way in ways()


def ways() -> list[tuple[Any, ...]]:
    return list(
        CallbackAttempt.objects.order_by("id").values_list("key", "attempt", "status", "failure")
    )
