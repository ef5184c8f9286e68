"""Accepting requests: validated, stored and offered in one transaction, in any number."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.db import transaction

from delayed_queue import ScheduledMessage
from example_project.notifications import sql
from example_project.notifications.catalogue import StoredTemplates
from example_project.notifications.conf import get_settings
from example_project.notifications.ids import new_id
from example_project.notifications.models import Source, Status
from example_project.notifications.services import fetch, offer_callbacks, queue_of
from example_project.notifications.validation import FieldError, Request, validate


@dataclass(frozen=True, slots=True)
class Accepted:
    """The notification of a request; of a duplicate, that of the first request of its key."""

    id: uuid.UUID
    status: Status
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request was not stored."""

    errors: Sequence[FieldError]


@dataclass(slots=True)
class _Candidate:
    """A valid request on its way, and the key that it must not share within the window."""

    place: int
    id: uuid.UUID
    request: Request
    claim: str


def accept(
    raws: Sequence[object],
    *,
    tenant: str,
    source: Source,
    fallback_keys: Sequence[str] = (),
) -> list[Accepted | Refused]:
    """Store the valid requests and offer their messages, all in one transaction.

    Returns a result for each, in order. ``fallback_keys`` are used where a request has no
    ``dedupeKey``: the ids of a broker's messages.
    """
    now, catalogue = datetime.now(UTC), StoredTemplates()
    results: dict[int, Accepted | Refused] = {}
    candidates: list[_Candidate] = []
    for place, raw in enumerate(raws):
        request = validate(raw, catalogue, now)
        if isinstance(request, Request):
            fallback = fallback_keys[place] if fallback_keys else ""
            candidates.append(_Candidate(place, new_id(), request, _claim(request, fallback)))
        else:
            results[place] = Refused(request)
    if candidates:
        results.update(_store(candidates, tenant, source, now))
    return [results[place] for place in range(len(raws))]


def _claim(request: Request, fallback: str) -> str:
    """Return the key to claim; the caller's and the broker's never meet."""
    if request.dedupe_key:
        return f"key:{request.dedupe_key}"
    return f"message:{fallback}" if fallback else ""


@transaction.atomic
def _store(
    candidates: list[_Candidate], tenant: str, source: Source, now: datetime
) -> dict[int, Accepted]:
    firsts, duplicates = _deduplicated(candidates, tenant)
    statuses = _insert(firsts, tenant, source, now)
    _offer([each for each in firsts if statuses[each.id] == Status.ENQUEUED], now)
    ended = [each.id for each in firsts if statuses[each.id] != Status.ENQUEUED]
    callbacks = {each.id for each in firsts if each.request.callback_url}
    offer_callbacks((id_, statuses[id_]) for id_ in ended if id_ in callbacks)
    accepted = {each.place: Accepted(each.id, statuses[each.id]) for each in firsts}
    for place, first in duplicates.items():
        accepted[place] = Accepted(first[0], statuses.get(first[0], first[1]), is_duplicate=True)
    return accepted


def _deduplicated(
    candidates: list[_Candidate], tenant: str
) -> tuple[list[_Candidate], dict[int, tuple[uuid.UUID, Status]]]:
    """Return those to be stored, and for the places of the others whose duplicates they are."""
    firsts: dict[str, _Candidate] = {}
    for each in candidates:
        if each.claim:
            firsts.setdefault(each.claim, each)
    if not firsts:
        return candidates, {}
    holders = _claim_keys(firsts, tenant)
    stored: list[_Candidate] = []
    duplicates: dict[int, tuple[uuid.UUID, Status]] = {}
    for each in candidates:
        if each.claim in holders:
            duplicates[each.place] = holders[each.claim]
        elif each.claim and firsts[each.claim] is not each:
            duplicates[each.place] = (firsts[each.claim].id, Status.ENQUEUED)
        else:
            stored.append(each)
    return stored, duplicates


def _claim_keys(firsts: dict[str, _Candidate], tenant: str) -> dict[str, tuple[uuid.UUID, Status]]:
    """Claim the keys; return the notifications that hold those which were not free."""
    keys = sorted(firsts)
    taken = fetch(
        sql.CLAIM_KEYS,
        {
            "tenant": tenant,
            "keys": keys,
            "ids": [firsts[key].id for key in keys],
            "window": get_settings().DEDUPE_WINDOW,
        },
    )
    held = firsts.keys() - {key for (key,) in taken}
    if not held:
        return {}
    rows = fetch(sql.HOLDERS, {"tenant": tenant, "keys": sorted(held)})
    return {key: (id_, Status(status)) for key, id_, status in rows}


def _insert(
    candidates: list[_Candidate], tenant: str, source: Source, now: datetime
) -> dict[uuid.UUID, Status]:
    if not candidates:
        return {}
    requests = [each.request for each in candidates]
    params: dict[str, Any] = {
        plural: [getattr(each, name) for each in requests] for plural, name in _COLUMNS
    }
    params["ids"] = [each.id for each in candidates]
    params["send_ats"] = [_later(each.send_at, now) for each in requests]
    rows = fetch(sql.INSERT, params | {"tenant": tenant, "source": source.value})
    return {id_: Status(status) for id_, status in rows}


_COLUMNS: Final = (
    ("channels", "channel"),
    ("priorities", "priority"),
    ("categories", "category"),
    ("recipients", "recipient"),
    ("recipient_hashes", "recipient_hash"),
    ("templates", "template"),
    ("template_versions", "template_version"),
    ("subjects", "subject"),
    ("bodies", "body"),
    ("htmls", "html"),
    ("expires_ats", "expires_at"),
    ("dedupe_keys", "dedupe_key"),
    ("callback_urls", "callback_url"),
)


def _later(send_at: datetime | None, now: datetime) -> datetime | None:
    """Return None, at once, for the past: a date long gone must not overtake what waits."""
    return send_at if send_at is not None and send_at > now else None


def _offer(candidates: Iterable[_Candidate], now: datetime) -> None:
    """Offer a message for each, in order, one batch for each lane and channel."""
    batches: dict[tuple[str, str], list[ScheduledMessage]] = {}
    for each in candidates:
        request = each.request
        message = ScheduledMessage(str(each.id), None, _later(request.send_at, now))
        batches.setdefault((request.priority, request.channel), []).append(message)
    # In one order everywhere.
    for lane in sorted(batches):
        queue_of(*lane).offer_batch(batches[lane])
