"""Offer messages: the statements, and the methods that run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, ONE_PLAN, array_of, rows_of
from delayed_queue.queue.store.fragments import (
    EXPIRES_AT,
    HEADERS,
    IF_CHANGED,
    REPLACE,
    WINDOW_START,
    if_changed,
    replace,
)

_SOURCE: Final[LiteralString] = f"""{CLOCK}
INSERT INTO delayed_queue AS stored (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
    "versionAt", "group", "expiresAt"
)
SELECT
    %(key)s,
    %(kind)s,
    %(payload)s::bytea,
    COALESCE(%(schedule_at)s::bigint, now + %(delay)s::bigint),
    COALESCE(%(schedule_at)s::bigint, now + %(delay)s::bigint),
    now,
    %(headers)s::jsonb,
    now,
    %(group)s::varchar,
    COALESCE(%(expires_at)s::bigint, now + %(expires_in)s::bigint)
FROM clock"""

# Create or update one message. Returns created = true for an xmax of 0, false for an update, whose
# row carries the lock of ON CONFLICT, and no row for the same payload and first schedule (Q2, Q3).
# One statement, so it is either before or after an acknowledgement, and never loops (Q7).
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_OR_UPDATE: Final[LiteralString] = f"""{_SOURCE}{REPLACE}{IF_CHANGED}
RETURNING xmax = 0 AS created
"""

_POSTPONED: Final[LiteralString] = f"""LEAST(
        EXCLUDED."scheduledAtInitially", {WINDOW_START} + %(latest)s::bigint
    )"""

# As OFFER_OR_UPDATE, but the message is due at most %(latest)s after the start of its window, which
# stays its creation (Q38).
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_DEBOUNCED: Final[LiteralString] = f"""{_SOURCE}{replace(_POSTPONED, WINDOW_START)}{
    if_changed(_POSTPONED)
}
RETURNING xmax = 0 AS created
"""

# Create one message unless its key exists; no row if it does (Q1). DO NOTHING waits for a
# transaction that is deleting the key, and then creates the message (Q7).
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_IF_NOT_EXISTS: Final[LiteralString] = f"""{_SOURCE}
ON CONFLICT ("pKey", "pKind") DO NOTHING
RETURNING true AS created
"""

_DUE_AT: Final[LiteralString] = "COALESCE(offered.schedule_at, (SELECT now FROM clock))"


def batch_source(
    due_at: LiteralString = _DUE_AT,
    expires_at: LiteralString = "offered.expires_at",
    *,
    column: LiteralString = "",
    value: LiteralString = "",
    joined: LiteralString = "",
) -> LiteralString:
    """Return the INSERT of a chunk, without its ON CONFLICT; ``joined`` may add a column.

    Ids are drawn in input order, so equal schedules are delivered as they were offered (Q15). Rows
    are inserted in key order, so two batches cannot deadlock. Keys must be distinct.
    """
    return f"""
INSERT INTO delayed_queue AS stored ({column}
    id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
    "versionAt", "group", "expiresAt"
)
SELECT{value}
    id, key, %(kind)s, payload, due_at, due_at, created_at, headers, created_at, grouped, expires_at
FROM (
    SELECT
        nextval('delayed_queue_id_seq') AS id,
        offered.key,
        offered.payload,
        {due_at} AS due_at,
        (SELECT now FROM clock) AS created_at,
        offered.headers,
        offered.grouped,
        {expires_at}
    FROM unnest(
        %(keys)b::text[], %(payloads)b::bytea[], %(schedules)b::bigint[], %(headers)s::jsonb[],
        %(groups)s::text[], %(expiries)b::bigint[]
    ) AS offered (key, payload, schedule_at, headers, grouped, expires_at)
) AS numbered{joined}
ORDER BY key COLLATE "C"
"""


_BATCH_SOURCE: Final[LiteralString] = batch_source()

# OFFER_OR_UPDATE for a chunk; keys without a returned row were ignored. A key that another
# transaction inserts is waited for and affects only itself (Q13).
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_BATCH_OR_UPDATE: Final[LiteralString] = f"""{CLOCK}{_BATCH_SOURCE}{REPLACE}{IF_CHANGED}
RETURNING "pKey", xmax = 0 AS created
"""

# OFFER_IF_NOT_EXISTS for a chunk.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_BATCH_IF_NOT_EXISTS: Final[LiteralString] = f"""{CLOCK}{_BATCH_SOURCE}
ON CONFLICT ("pKey", "pKind") DO NOTHING
RETURNING "pKey", true AS created
"""

# The messages stored under the keys of offers, in their order: whether the content is the same, its
# first schedule, the creation (NULL where nothing is stored), and the clock. The clock is read
# after the snapshot: an offer that is not stored and not due by that clock was not handled.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
STORED_OFFERS: Final[LiteralString] = f"""
SELECT
    offered.key,
    COALESCE(
        stored.payload = offered.payload
        AND stored.headers IS NOT DISTINCT FROM offered.headers
        AND stored."group" IS NOT DISTINCT FROM offered.grouped
        AND stored.expires_at IS NOT DISTINCT FROM
            COALESCE(offered.expires_at, stored."createdAt" + offered.expires_in),
        false
    ),
    stored."scheduledAtInitially",
    stored."createdAt",
    COALESCE(%(now)s::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
FROM unnest(
    %(keys)b::text[], %(kinds)b::text[], %(payloads)b::bytea[], %(headers)s::jsonb[],
    %(groups)s::text[], %(expiries)b::bigint[], %(lives)b::bigint[]
) WITH ORDINALITY AS offered (
    key, kind, payload, headers, grouped, expires_at, expires_in, place
)
LEFT JOIN LATERAL (
    SELECT
        payload, {HEADERS} AS headers, "scheduledAtInitially", "createdAt", "group",
        {EXPIRES_AT} AS expires_at
    FROM delayed_queue
    WHERE "pKey" = offered.key
        AND "pKind" = offered.kind
    OFFSET 0
) AS stored ON true
ORDER BY place
"""

ONE_PLAN.update(
    (
        OFFER_OR_UPDATE,
        OFFER_DEBOUNCED,
        OFFER_IF_NOT_EXISTS,
        OFFER_BATCH_OR_UPDATE,
        OFFER_BATCH_IF_NOT_EXISTS,
    )
)


class Offered(NamedTuple):
    """An offer; due at ``schedule_at`` or after ``delay``, in milliseconds.

    It expires at ``expires_at`` or after ``expires_in``, or never.
    """

    key: str
    kind: str
    payload: bytes
    schedule_at: int | None
    delay: int
    headers: str | None
    group: str | None = None
    expires_at: int | None = None
    expires_in: int | None = None


class Columns(NamedTuple):
    """The offers of a batch, column by column."""

    keys: list[str]
    payloads: list[bytes]
    schedules: list[int | None]
    headers: list[str | None]
    groups: list[str | None]
    expiries: list[int | None]


class FoundOffer(NamedTuple):
    """The message stored under an offer's key; None where there is none."""

    key: str
    is_same: bool
    scheduled_at_initially: int | None
    created_at: int | None
    now: int


class OfferStore:
    """The statements that put messages into a queue."""

    def offer(
        self,
        kind: str,
        key: str,
        payload: bytes,
        *,
        can_update: bool,
        schedule_at: int | None = None,
        delay: int = 0,
        headers: str | None = None,
        group: str | None = None,
        expires_at: int | None = None,
        expires_in: int | None = None,
        latest: int | None = None,
        now: int | None = None,
        channel: str | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> bool | None:
        """Return True when the row was created, False when updated, None when ignored.

        ``latest`` is for offers that may update. Wakes the listeners of ``channel``.
        """
        statement = OFFER_OR_UPDATE if can_update else OFFER_IF_NOT_EXISTS
        if latest is not None:
            statement = OFFER_DEBOUNCED
        params = {
            "kind": kind, "key": key, "payload": payload, "schedule_at": schedule_at,
            "delay": delay, "headers": headers, "group": group, "expires_at": expires_at,
            "expires_in": expires_in, "latest": latest, "now": now,
        }  # fmt: skip
        (rows,) = db.run(using, [(statement, params)], [] if channel is None else [channel])
        created: bool | None = rows[0][0] if rows else None
        return created

    def offer_batch(
        self,
        kind: str,
        offers: Columns,
        *,
        can_update: bool,
        now: int | None = None,
        channel: str | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> dict[str, bool]:
        """Return for each key that was written whether it was created; keys are distinct.

        Wakes the listeners of ``channel``.
        """
        statement = OFFER_BATCH_OR_UPDATE if can_update else OFFER_BATCH_IF_NOT_EXISTS
        params = {
            "kind": kind, "keys": offers.keys, "payloads": offers.payloads,
            "schedules": array_of(offers.schedules), "headers": array_of(offers.headers),
            "groups": array_of(offers.groups), "expiries": array_of(offers.expiries), "now": now,
        }  # fmt: skip
        channels = [] if channel is None else [channel]
        (rows,) = db.run(using, [(statement, params)], channels)
        return dict(rows)

    def find_offers(
        self, offers: Sequence[Offered], *, now: int | None = None, using: str = db.DEFAULT_ALIAS
    ) -> list[FoundOffer]:
        """Return what is stored under the key of each offer."""
        columns = map(list, zip(*offers, strict=True))
        keys, kinds, payloads, _, _, headers, groups, expiries, lives = columns
        params = {
            "keys": keys, "kinds": kinds, "payloads": payloads, "headers": headers,
            "groups": groups, "expiries": expiries, "lives": lives, "now": now,
        }  # fmt: skip
        return rows_of(FoundOffer, db.fetch(using, STORED_OFFERS, params))
