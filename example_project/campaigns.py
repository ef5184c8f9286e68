"""The target of a campaign's import: its rows become notifications."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from delayed_queue.messages import Counts
from delayed_queue.notifications.catalogue import find_template
from delayed_queue.notifications.intake import Accepted, Refused, accept
from delayed_queue.notifications.validation import Request, validate

BATCH = 500


def import_rows(rows: Iterable[dict[str, Any]]) -> Counts:
    """Store the rows as notifications of the tenant that is named like their queue.

    The key of a row is its ``dedupeKey``, so rows that are already stored count as ignored.
    """
    given, counts = iter(rows), Counts()
    while batch := list(islice(given, BATCH)):
        answers = accept(list(map(_request_of, batch)), tenant=batch[0]["queue"])
        refused = [each for each in answers if isinstance(each, Refused)]
        if refused:
            raise ValueError(f"{len(refused)} rows became invalid: {refused[0].errors[0]}")
        ignored = sum(isinstance(each, Accepted) and each.is_duplicate for each in answers)
        counts += Counts(created=len(answers) - ignored, ignored=ignored)
    return counts


def check(row: dict[str, Any]) -> list[str]:
    """Return the errors of a row, as the REST interface reports them."""
    found = validate(_request_of(row), find_template)
    if isinstance(found, Request):
        return []
    return [f"{each.path}: {each.message}" for each in found]


import_rows.check = check  # type: ignore[attr-defined]


def _request_of(row: dict[str, Any]) -> Any:
    payload = row["payload"]
    return {"dedupeKey": row["key"], **payload} if isinstance(payload, dict) else payload
