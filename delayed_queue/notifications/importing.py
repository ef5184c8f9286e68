"""Notifications from the rows of a pipeline: ``import … --target``, into the service's intake."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from delayed_queue.messages import Counts
from delayed_queue.notifications import intake
from delayed_queue.notifications.catalogue import StoredTemplates
from delayed_queue.notifications.intake import Accepted, Refused
from delayed_queue.notifications.models import Source
from delayed_queue.notifications.validation import Request, validate

BATCH: Final = 500
_FRESH_SECONDS: Final = 10


class NoLongerValid(ValueError):
    """Rows were good when they were checked, and are not any more; the text names no row."""


def import_rows(rows: Iterable[dict[str, Any]]) -> Counts:
    """Store the rows as notifications of the tenant that is their queue's name.

    One transaction for each 500 rows. A row's key is its ``dedupeKey`` where the payload has
    none, so rows that were stored before count as ignored. Raises NoLongerValid when rows have
    become invalid since they were checked, such as expired; what was stored by then stays.
    """
    given = iter(rows)
    counts = Counts()
    while batch := list(islice(given, BATCH)):
        counts += _stored(batch)
    return counts


def check(row: dict[str, Any]) -> list[str]:
    """Return what is wrong with the row, in the words of the REST interface."""
    found = validate(request_of(row), _templates(int(time.monotonic() // _FRESH_SECONDS)))
    if isinstance(found, Request):
        return []
    return [f"{each.path}: {each.message}" if each.path else each.message for each in found]


import_rows.check = check  # type: ignore[attr-defined]


def request_of(row: dict[str, Any]) -> Any:
    """Return the request that the row stands for; what says nothing itself takes it from there."""
    request = row["payload"]
    if not isinstance(request, dict):
        return request
    send_at = _send_at(row)
    filled = {"dedupeKey": row["key"], **({"sendAt": send_at.isoformat()} if send_at else {})}
    return {**request, **{name: each for name, each in filled.items() if not _has(request, name)}}


def _has(request: dict[str, Any], name: str) -> bool:
    return request.get(name) is not None and request[name] != ""


def _send_at(row: dict[str, Any]) -> datetime | None:
    at: datetime | None = row["schedule_at"]
    return datetime.now(UTC) + row["delay"] if at is None and row["delay"] is not None else at


@lru_cache(maxsize=1)
def _templates(period: int) -> StoredTemplates:
    """Return templates looked up in this period: an executor's process lives for many imports."""
    return StoredTemplates()


def _stored(batch: Sequence[dict[str, Any]]) -> Counts:
    requests: dict[str, list[Any]] = {}
    for row in batch:
        requests.setdefault(row["queue"], []).append(request_of(row))
    found = (_accepted(tenant, requests[tenant]) for tenant in sorted(requests))
    return sum(found, Counts())


def _accepted(tenant: str, requests: Sequence[Any]) -> Counts:
    answers = intake.accept(requests, tenant=tenant, source=Source.IMPORT)
    refused = [each for each in answers if isinstance(each, Refused)]
    if refused:
        first = refused[0].errors[0]
        raise NoLongerValid(
            f"{len(refused)} rows have become invalid since they were checked, the first: "
            f"{first.path} {first.message}. Import again: such rows are put aside then."
        )
    ignored = sum(isinstance(each, Accepted) and each.is_duplicate for each in answers)
    return Counts(created=len(answers) - ignored, ignored=ignored)
