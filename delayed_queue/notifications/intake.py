"""Accepting requests: validated, stored and offered in one transaction, in any number."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, LiteralString

from django.db import transaction
from msgspec import json, structs

from delayed_queue import ScheduledMessage
from delayed_queue.conf import KIB
from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import Lost, repeat
from delayed_queue.db.sql import Step
from delayed_queue.db.statements import run
from delayed_queue.http.reading import MAX_GUESSES
from delayed_queue.notifications.catalogue import find_template
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.models import Channel, Notification, Status, new_ids
from delayed_queue.notifications.segments import segments_of
from delayed_queue.notifications.services import USING, fetch, queue_of, statuses_of
from delayed_queue.notifications.settling import CALLBACKS
from delayed_queue.notifications.validation import FieldError, Request, validate

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

# Store accepted requests in order, except those whose key belongs to another notification; those
# of suppressed recipients end at once. Sent together with CLAIM_KEYS, whose answer is not there
# yet, so it reads the holders of the keys itself, in a later snapshot. Keys and suppressions are
# read per request: without statistics, the planner would otherwise read all rows.
# Reads: notification_suppression, notification_dedupe.
INSERT: Final[LiteralString] = (
    """
WITH ended AS (
    INSERT INTO delayed_queue_notification (
        id, tenant, channel, priority, category, is_transactional, recipient, recipient_hash,
        template, template_version, subject, body, html, mail, send_at, expires_at, quiet,
        dedupe_key, callback_url, status, outcome, ended_at, attempts, provider, provider_id,
        error_class
    )
    SELECT
        id, %(tenant)s::text, channel, priority, category, is_transactional, recipient, hash,
        template, template_version, subject, body, html, mail,
        COALESCE(send_at, statement_timestamp()), expires_at, quiet, dedupe_key, callback_url,
        CASE WHEN is_suppressed THEN 'CANCELLED' ELSE 'ENQUEUED' END,
        CASE WHEN is_suppressed THEN 'suppressed' ELSE '' END,
        CASE WHEN is_suppressed THEN statement_timestamp() END,
        0, '', '', ''
    FROM ROWS FROM (
        jsonb_to_recordset(%(requests)s::jsonb) AS (
            id uuid, channel text, priority text, category text, is_transactional boolean,
            recipient text, recipient_hash text, template text, template_version int,
            subject text, body text, html text, mail jsonb, send_at timestamptz,
            expires_at timestamptz, quiet text, dedupe_key text, callback_url text, claim text
        )
    ) WITH ORDINALITY AS request
    CROSS JOIN LATERAL decode(recipient_hash, 'base64') AS hash
    CROSS JOIN LATERAL (
        SELECT EXISTS (
            SELECT 1
            FROM delayed_queue_notification_suppression AS s
            WHERE s.channel = request.channel
                AND s.recipient_hash = hash
                AND s.category IN ('', CASE WHEN is_transactional THEN '' ELSE request.category END)
        ) AS is_suppressed
    ) AS suppression
    WHERE claim = ''
        OR (
            SELECT held.notification_id
            FROM delayed_queue_notification_dedupe AS held
            WHERE held.tenant = %(tenant)s::text
                AND held.key = claim
        ) = id
    ORDER BY ordinality
    RETURNING id, status, callback_url
)"""
    + CALLBACKS
    + """
SELECT id, status
FROM ended
"""
)


# Deeper than validation allows, so that validation reports the path.
DEPTH: Final = 32
# The largest request, without attachments.
BODY_BYTES: Final = 256 * KIB


def body_bytes() -> int:
    """Return the largest size of a request, with attachments in base64."""
    return BODY_BYTES + get_settings().ATTACHMENT_BYTES * 4 // 3


@dataclass(frozen=True, slots=True)
class Accepted:
    """The notification of a request; of a duplicate, that of the first request of its key."""

    id: uuid.UUID
    status: Status
    is_duplicate: bool = False
    # Set for an SMS that is no duplicate.
    segments: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why a request was not stored."""

    errors: Sequence[FieldError]


def accept(
    raws: Sequence[object], *, tenant: str, fallback_keys: Sequence[str] = ()
) -> list[Accepted | Refused]:
    """Store the valid requests and offer their messages, all in one transaction.

    Returns a result for each, in order; what was Refused when it was read remains so.
    ``fallback_keys`` are used where a request has no ``dedupeKey``: the ids of a broker's messages.

    Three round trips for one request, or for many of one queue: store, offer, commit. Takes part
    in a caller's transaction without a savepoint: an error undoes that, too. Raises Django's
    database errors and ResourceUnavailable.
    """
    now = database_now(USING)
    guesses = MAX_GUESSES if len(raws) == 1 else 0
    read = [_validated(raw, now, guesses) for raw in raws]
    keys = fallback_keys or [""] * len(raws)
    candidates = [
        _Candidate(id_, each, _later(each.send_at, now), _claim(each, key))
        for id_, each, key in zip(new_ids(len(read)), read, keys, strict=True)
        if isinstance(each, Request)
    ]
    stored = iter(_Batch(tenant, candidates).store() if candidates else ())
    return [next(stored) if isinstance(each, Request) else each for each in read]


def read_json(body: bytes) -> Any:
    """Return the JSON value of one request, read strictly; a Refused for malformed JSON."""
    # Imported late: the admin's pages, which retry parked requests, need no HTTP API.
    from delayed_queue.http.api.bodies import parse
    from delayed_queue.http.api.problems import Problem

    try:
        return parse(body, DEPTH)
    except Problem as problem:
        return Refused([FieldError("", f"is malformed JSON: {problem.detail}")])


def _validated(raw: object, now: datetime, guesses: int) -> Request | Refused:
    if isinstance(raw, Refused):
        return raw
    found = validate(raw, find_template, now, guesses=guesses)
    return found if isinstance(found, Request) else Refused(found)


def _later(send_at: datetime | None, now: datetime) -> datetime | None:
    """Return None, at once, for the past: an old date must not overtake what waits."""
    return send_at if send_at is not None and send_at > now else None


def _claim(request: Request, fallback: str) -> str:
    """Return the key to claim; those of callers and of the broker differ by their prefix."""
    if request.dedupe_key:
        return f"key:{request.dedupe_key}"
    return f"message:{fallback}" if fallback else ""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A valid request, and the key that must be unique within the window."""

    id: uuid.UUID
    request: Request
    send_at: datetime | None
    claim: str


class _Batch:
    """The valid requests of one call. The first of several with one key is stored."""

    def __init__(self, tenant: str, candidates: Sequence[_Candidate]) -> None:
        self._tenant = tenant
        self._candidates = candidates
        self._firsts = {each.claim: each for each in reversed(candidates) if each.claim}

    def store(self) -> list[Accepted]:
        return repeat(USING, self._store, truth=self._find_stored)

    @transaction.atomic(using=USING, savepoint=False)
    def _store(self) -> list[Accepted]:
        asked = [each for each in self._candidates if self._first_of(each) is each]
        statuses = self._insert(asked)
        taken = [each for each in asked if each.id not in statuses]
        holders = self._holders(taken)
        # A key whose notification was deleted stands for nothing.
        orphans = [each for each in taken if each.claim not in holders]
        if orphans:
            rows = fetch(INSERT, self._insert_params([replace(each, claim="") for each in orphans]))
            statuses |= statuses_of(rows)
        self._offer([each for each in asked if each.id in statuses], statuses)
        return self._answers(statuses, holders)

    def _find_stored(self, lost: Lost) -> list[Accepted]:
        """Return what a try without an answer has stored, all or nothing; or store it."""
        rows = Notification.objects.filter(pk__in=[each.id for each in self._candidates])
        statuses = statuses_of(rows.values_list("id", "status"))
        if statuses:
            return self._answers(statuses, self._holders(self._candidates))
        if not lost.is_over:
            raise lost.unknown()
        return self._store()

    def _first_of(self, candidate: _Candidate) -> _Candidate:
        return self._firsts.get(candidate.claim, candidate)

    def _insert(self, asked: list[_Candidate]) -> dict[uuid.UUID, Status]:
        """Claim the keys and store those that got theirs, in one round trip."""
        steps: list[Step] = [(INSERT, self._insert_params(asked))]
        if self._firsts:
            steps.insert(0, (CLAIM_KEYS, self._claim_params()))
        return statuses_of(run(USING, steps, savepoint=False)[-1])

    def _claim_params(self) -> dict[str, Any]:
        keys = sorted(self._firsts)
        return {
            "tenant": self._tenant,
            "keys": keys,
            "ids": [self._firsts[key].id for key in keys],
            "window": get_settings().DEDUPE_WINDOW,
        }

    def _insert_params(self, candidates: list[_Candidate]) -> dict[str, str]:
        rows = [
            {
                **structs.asdict(each.request),
                "id": each.id, "send_at": each.send_at, "claim": each.claim,
            }
            for each in candidates
        ]  # fmt: skip
        return {"tenant": self._tenant, "requests": json.encode(rows).decode()}

    def _holders(self, held: Iterable[_Candidate]) -> dict[str, tuple[uuid.UUID, Status]]:
        """Return the notifications that hold the keys of these."""
        keys = sorted(each.claim for each in held if each.claim)
        if not keys:
            return {}
        rows = fetch(HOLDERS, {"tenant": self._tenant, "keys": keys})
        return {key: (id_, Status(status)) for key, id_, status in rows}

    def _offer(self, stored: list[_Candidate], statuses: dict[uuid.UUID, Status]) -> None:
        """Offer a message for each, in order, one batch for each priority and channel."""
        batches: dict[tuple[str, str], list[ScheduledMessage]] = {}
        for each in stored:
            if statuses[each.id] == Status.ENQUEUED:
                message = ScheduledMessage(str(each.id), None, each.send_at)
                place = (each.request.priority, each.request.channel)
                batches.setdefault(place, []).append(message)
        # In the same order in all processes.
        for place in sorted(batches):
            queue_of(*place).offer_batch(batches[place])

    def _answers(
        self, statuses: dict[uuid.UUID, Status], holders: dict[str, tuple[uuid.UUID, Status]]
    ) -> list[Accepted]:
        found = []
        for each in self._candidates:
            first = self._first_of(each)
            is_new = first.id in statuses
            id_, status = (first.id, statuses[first.id]) if is_new else holders[each.claim]
            is_duplicate = not is_new or first is not each
            is_sms = each.request.channel == Channel.SMS and not is_duplicate
            segments = segments_of(each.request.body) if is_sms else 0
            found.append(Accepted(id_, status, is_duplicate, segments))
        return found
