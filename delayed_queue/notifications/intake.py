"""Accepting requests: validated, stored and offered in one transaction, in any number."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final, LiteralString

from django.db import transaction

from delayed_queue import ScheduledMessage
from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import Lost, is_in_transaction, repeat
from delayed_queue.db.statements import run
from delayed_queue.messages import Counts
from delayed_queue.notifications.catalogue import (
    RememberedTemplates,
    StaleTemplates,
    StoredTemplates,
    demand_none,
)
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.models import Notification, Source, Status, new_id
from delayed_queue.notifications.services import USING, fetch, offer_callbacks, queue_of
from delayed_queue.notifications.validation import MAX_GUESSES, FieldError, Request, validate

# Take the dedupe keys that are free, or whose window is over, for these notifications; the rows
# that come back were taken. Waits for another transaction that takes the same key, so of two at
# once exactly one wins. The caller sorts the keys, so that two batches never wait for each other,
# and names each only once. Reads: notification_dedupe.
CLAIM_KEYS: Final[LiteralString] = """
INSERT INTO delayed_queue_notification_dedupe AS held (tenant, key, notification_id, until)
SELECT %(tenant)s::text, key, id, statement_timestamp() + %(window)s::interval
FROM unnest(%(keys)s::text[], %(ids)s::uuid[]) AS asked (key, id)
ON CONFLICT (tenant, key) DO UPDATE
SET notification_id = EXCLUDED.notification_id, until = EXCLUDED.until
WHERE held.until <= statement_timestamp()
RETURNING key
"""

# The notifications that hold those keys. Reads: notification_dedupe, the primary key.
HOLDERS: Final[LiteralString] = """
SELECT held.key, n.id, n.status
FROM delayed_queue_notification_dedupe AS held
JOIN delayed_queue_notification AS n ON n.id = held.notification_id
WHERE held.tenant = %(tenant)s
    AND held.key = ANY (%(keys)s::text[])
"""

# Store accepted requests in their order, but those whose key belongs to another notification; those
# for suppressed recipients end at once. It is sent right behind CLAIM_KEYS, whose answer is not
# there yet: whose a key is, this reads itself, in a snapshot that has what that statement wrote.
# Asked of each request, for what was never analyzed the planner would read from end to end.
# Reads: notification_suppression, notification_dedupe.
INSERT: Final[LiteralString] = """
INSERT INTO delayed_queue_notification (
    id, tenant, source, channel, priority, category, recipient, recipient_hash, template,
    template_version, subject, body, html, send_at, expires_at, dedupe_key, callback_url, status,
    outcome, ended_at, attempts, provider, provider_id, error_class
)
SELECT
    id, %(tenant)s::text, %(source)s::text, channel, priority, category, recipient, recipient_hash,
    template, template_version, subject, body, html, COALESCE(send_at, statement_timestamp()),
    expires_at, dedupe_key, callback_url,
    CASE WHEN is_suppressed THEN 'CANCELLED' ELSE 'ENQUEUED' END,
    CASE WHEN is_suppressed THEN 'suppressed' ELSE '' END,
    CASE WHEN is_suppressed THEN statement_timestamp() END,
    0, '', '', ''
FROM unnest(
    %(ids)s::uuid[], %(channels)s::text[], %(priorities)s::text[], %(categories)s::text[],
    %(recipients)s::text[], %(recipient_hashes)s::bytea[], %(templates)s::text[],
    %(template_versions)s::int[], %(subjects)s::text[], %(bodies)s::text[], %(htmls)s::text[],
    %(send_ats)s::timestamptz[], %(expires_ats)s::timestamptz[], %(dedupe_keys)s::text[],
    %(callback_urls)s::text[], %(claims)s::text[]
) WITH ORDINALITY AS request (
    id, channel, priority, category, recipient, recipient_hash, template, template_version,
    subject, body, html, send_at, expires_at, dedupe_key, callback_url, claim, place
)
CROSS JOIN LATERAL (
    SELECT EXISTS (
        SELECT 1
        FROM delayed_queue_notification_suppression AS s
        WHERE s.channel = request.channel
            AND s.recipient_hash = request.recipient_hash
            AND s.category IN ('', request.category)
    ) AS is_suppressed
) AS suppression
WHERE claim = ''
    OR (
        SELECT held.notification_id
        FROM delayed_queue_notification_dedupe AS held
        WHERE held.tenant = %(tenant)s::text
            AND held.key = claim
    ) = id
ORDER BY place
RETURNING id, status
"""


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
    intake = _Intake(tenant, source, database_now(USING), fallback_keys)
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
        if results or is_in_transaction(USING):
            templates.confirm()
        if candidates:
            store = partial(self._store, candidates, templates)
            truth = partial(self._stored, candidates, store)
            results.update(repeat(USING, store, truth=truth))
        return [results[place] for place in range(len(raws))]

    def _candidate(self, place: int, request: Request) -> _Candidate:
        fallback = self.fallback_keys[place] if self.fallback_keys else ""
        return _Candidate(place, new_id(), request, _claim(request, fallback))

    @transaction.atomic(using=USING, savepoint=False)
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
            rows = fetch(INSERT, self._columns(orphans) | {"claims": [""] * len(orphans)})
            statuses |= _statuses(rows)
        self._offer([each for each in asked if each.id in statuses], statuses)
        return {each.place: _answer(each, firsts, statuses, holders) for each in candidates}

    def _stored(
        self, candidates: list[_Candidate], store: Callable[[], dict[int, Accepted]], lost: Lost
    ) -> dict[int, Accepted]:
        """Return what a lost try has stored, all or nothing of it; or store it."""
        rows = Notification.objects.filter(pk__in=[each.id for each in candidates])
        statuses = {id_: Status(status) for id_, status in rows.values_list("id", "status")}
        if not statuses:
            if not lost.is_over:
                raise lost.unknown()
            return store()
        firsts = {each.claim: each for each in reversed(candidates) if each.claim}
        holders = self._holders(each for each in candidates if each.claim)
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
            steps.append((CLAIM_KEYS, self._claim_params(firsts)))
        steps.append((INSERT, self._columns(asked)))
        answers = run(USING, steps, savepoint=False)
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
        rows = fetch(HOLDERS, {"tenant": self.tenant, "keys": keys})
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
    return database_now(USING) + row["delay"] if at is None and row["delay"] is not None else at


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
    answers = accept(requests, tenant=tenant, source=Source.IMPORT)
    refused = [each for each in answers if isinstance(each, Refused)]
    if refused:
        first = refused[0].errors[0]
        raise NoLongerValid(
            f"{len(refused)} rows became invalid after the check. The first: "
            f"{first.path} {first.message}. Import again; such rows are skipped "
            "then."
        )
    ignored = sum(isinstance(each, Accepted) and each.is_duplicate for each in answers)
    return Counts(created=len(answers) - ignored, ignored=ignored)
