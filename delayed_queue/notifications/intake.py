"""Accepting requests: validated, stored and offered in one transaction, in any number."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, transaction

from delayed_queue import ScheduledMessage
from delayed_queue.db.plans import plan_each_time
from delayed_queue.db.resilience import is_in_transaction
from delayed_queue.db.statements import fetch_all_at_once
from delayed_queue.notifications import sql
from delayed_queue.notifications.catalogue import (
    RememberedTemplates,
    StaleTemplates,
    StoredTemplates,
    demand_none,
)
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.ids import new_id
from delayed_queue.notifications.models import Source, Status
from delayed_queue.notifications.services import fetch, offer_callbacks, queue_of
from delayed_queue.notifications.validation import MAX_GUESSES, FieldError, Request, validate


@dataclass(frozen=True, slots=True)
class Accepted:
    """The notification of a request; of a duplicate, that of the first request of its key."""

    id: uuid.UUID
    status: Status
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why a request was not stored."""

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

    Four round trips for one request, or for many of one queue: to begin, store, offer and commit.
    Takes part in a caller's transaction without a savepoint: an error undoes that, too. Raises
    Django's database errors and ResourceUnavailable.
    """
    intake = _Intake(tenant, source, datetime.now(UTC), fallback_keys)
    try:
        return intake.accept(raws, RememberedTemplates())
    except StaleTemplates:
        return intake.accept(raws, StoredTemplates())


@dataclass(frozen=True, slots=True)
class _Intake:
    """The origin of requests: their tenant, the way they came and when."""

    tenant: str
    source: Source
    now: datetime
    fallback_keys: Sequence[str]

    def accept(
        self, raws: Sequence[object], templates: StoredTemplates
    ) -> list[Accepted | Refused]:
        """Do as ``intake.accept()``; raises StaleTemplates, having written nothing."""
        results: dict[int, Accepted | Refused] = {}
        candidates: list[_Candidate] = []
        guesses = MAX_GUESSES if len(raws) == 1 else 0
        for place, raw in enumerate(raws):
            request = validate(raw, templates, self.now, guesses=guesses)
            if isinstance(request, Request):
                candidates.append(self._candidate(place, request))
            else:
                results[place] = Refused(request)
        # What is refused is written by no statement that would tell; and of a transaction of the
        # caller's nothing could be taken back.
        if results or is_in_transaction(DEFAULT_DB_ALIAS):
            templates.confirm()
        if candidates:
            # Once for each connection, and not within a transaction.
            plan_each_time(DEFAULT_DB_ALIAS)
            results.update(self._store(candidates, templates))
        return [results[place] for place in range(len(raws))]

    def _candidate(self, place: int, request: Request) -> _Candidate:
        fallback = self.fallback_keys[place] if self.fallback_keys else ""
        return _Candidate(place, new_id(), request, _claim(request, fallback))

    @transaction.atomic(savepoint=False)
    def _store(
        self, candidates: list[_Candidate], templates: StoredTemplates
    ) -> dict[int, Accepted]:
        firsts = {each.claim: each for each in reversed(candidates) if each.claim}
        asked = [each for each in candidates if firsts.get(each.claim, each) is each]
        statuses = self._insert(asked, firsts, templates)
        holders = self._holders(each for each in asked if each.id not in statuses)
        # A key whose notification is gone stands for nothing.
        orphans = [each for each in asked if each.id not in statuses and each.claim not in holders]
        if orphans:
            rows = fetch(sql.INSERT, self._columns(orphans) | {"claims": [""] * len(orphans)})
            statuses |= _statuses(rows)
        self._offer([each for each in asked if each.id in statuses], statuses)
        return {each.place: _answer(each, firsts, statuses, holders) for each in candidates}

    def _insert(
        self,
        asked: list[_Candidate],
        firsts: dict[str, _Candidate],
        templates: StoredTemplates,
    ) -> dict[uuid.UUID, Status]:
        """Claim the keys and store those that got theirs, in one round trip."""
        confirmation = templates.confirmation()
        steps = [] if confirmation is None else [confirmation]
        if firsts:
            steps.append((sql.CLAIM_KEYS, self._claim_params(firsts)))
        steps.append((sql.INSERT, self._columns(asked)))
        answers = fetch_all_at_once(DEFAULT_DB_ALIAS, steps)
        if confirmation is not None:
            demand_none(answers[0])
        return _statuses(answers[-1])

    def _claim_params(self, firsts: dict[str, _Candidate]) -> dict[str, Any]:
        keys = sorted(firsts)
        return {
            "tenant": self.tenant,
            "keys": keys,
            "ids": [firsts[key].id for key in keys],
            "window": get_settings().DEDUPE_WINDOW,
        }

    def _columns(self, candidates: list[_Candidate]) -> dict[str, Any]:
        requests = [each.request for each in candidates]
        params: dict[str, Any] = {
            plural: [getattr(each, name) for each in requests] for plural, name in _COLUMNS
        }
        params["ids"] = [each.id for each in candidates]
        params["claims"] = [each.claim for each in candidates]
        params["send_ats"] = [_later(each.send_at, self.now) for each in requests]
        return params | {"tenant": self.tenant, "source": self.source.value}

    def _holders(self, held: Iterable[_Candidate]) -> dict[str, tuple[uuid.UUID, Status]]:
        """Return the notifications that hold the keys of these."""
        keys = sorted(each.claim for each in held)
        if not keys:
            return {}
        rows = fetch(sql.HOLDERS, {"tenant": self.tenant, "keys": keys})
        return {key: (id_, Status(status)) for key, id_, status in rows}

    def _offer(self, stored: list[_Candidate], statuses: dict[uuid.UUID, Status]) -> None:
        """Offer a message for each, in order, one batch for each priority and channel."""
        batches: dict[tuple[str, str], list[ScheduledMessage]] = {}
        for each in stored:
            if statuses[each.id] == Status.ENQUEUED:
                request = each.request
                message = ScheduledMessage(str(each.id), None, _later(request.send_at, self.now))
                batches.setdefault((request.priority, request.channel), []).append(message)
        # In one order everywhere.
        for place in sorted(batches):
            queue_of(*place).offer_batch(batches[place])
        told = (each.id for each in stored if each.request.callback_url)
        offer_callbacks((id_, statuses[id_]) for id_ in told)


def _claim(request: Request, fallback: str) -> str:
    """Return the key to claim; the caller's and the broker's never meet."""
    if request.dedupe_key:
        return f"key:{request.dedupe_key}"
    return f"message:{fallback}" if fallback else ""


def _answer(
    candidate: _Candidate,
    firsts: dict[str, _Candidate],
    statuses: dict[uuid.UUID, Status],
    holders: dict[str, tuple[uuid.UUID, Status]],
) -> Accepted:
    first = firsts.get(candidate.claim, candidate)
    if first.id in statuses:
        return Accepted(first.id, statuses[first.id], is_duplicate=first is not candidate)
    return Accepted(*holders[candidate.claim], is_duplicate=True)


def _statuses(rows: list[tuple[Any, ...]]) -> dict[uuid.UUID, Status]:
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
