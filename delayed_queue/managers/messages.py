"""The queue's own statements, and the rows they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue import sql
from delayed_queue.managers.offers import FoundOffer, Offered
from delayed_queue.managers.steps import NO_FLOOR, claiming, earliest_first
from delayed_queue.statements import (
    Row,
    execute,
    fetch,
    fetch_all_and_notify,
    fetch_and_notify,
    fetch_and_save,
    fetch_at_once,
    notify,
)

M = TypeVar("M", bound=models.Model)


class LeasedRow(NamedTuple):
    """A row as a claim returns it. A named tuple: it costs a third of a dataclass to make."""

    id: int
    key: str
    payload: bytes
    scheduled_at: int
    due_at: int
    leased_until: int
    attempts: int
    headers: str | None
    is_retaken: bool = False


class ConsumedRow(NamedTuple):
    """A row taken out by CONSUME: as leased, and what is needed to put it back."""

    id: int
    key: str
    payload: bytes
    scheduled_at: int
    due_at: int
    leased_until: int
    attempts: int
    headers: str | None
    is_retaken: bool
    created_at: int
    first_error: str | None
    last_error: str | None


class StoredRow(NamedTuple):
    """A row as READ returns it, with the instant to judge its state by."""

    scheduled_at: int
    scheduled_at_initially: int
    created_at: int
    lease_id: str | None
    attempts: int
    headers: str | None
    last_error: str | None
    payload: bytes
    now: int


class StatsRow(NamedTuple):
    """The counts of a queue, each at most the cap, and the age of the oldest due message."""

    due: int
    scheduled: int
    leased: int
    dead: int
    oldest_due_age: int | None


class OverviewRow(NamedTuple):
    """The counts of one queue among many, and what tells whether a count was cut off."""

    kind: str
    due: int
    scheduled: int
    read: int
    leased: int
    dead: int
    oldest_due_age: int | None
    held: int


class ExtendedRow(NamedTuple):
    """A lease that was prolonged."""

    id: int
    lease_id: str
    leased_until: int


class MessageManager(models.Manager[M]):
    """The queue's statements. ``kind`` names the queue, ``using`` the database alias.

    Instants and durations are integer milliseconds; ``now=None`` is the database's clock.
    Methods neither retry nor open transactions: that is the queue's business.
    """

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
        now: int | None = None,
        channel: str | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool | None:
        """Return True when the row was created, False when updated, None when ignored.

        ``channel`` is the one whose listeners are to be woken.
        """
        statement = sql.OFFER_OR_UPDATE if can_update else sql.OFFER_IF_NOT_EXISTS
        params = {
            "kind": kind, "key": key, "payload": payload, "schedule_at": schedule_at,
            "delay": delay, "headers": headers, "now": now,
        }  # fmt: skip
        if channel is None:
            rows = fetch(using, statement, params)
        else:
            rows = fetch_and_notify(using, statement, params, channel)
        return rows[0][0] if rows else None

    def offer_batch(
        self,
        kind: str,
        keys: list[str],
        payloads: list[bytes],
        schedules: list[int | None],
        headers: list[str | None],
        *,
        can_update: bool,
        now: int | None = None,
        channel: str | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> dict[str, bool]:
        """Return, for each key that was written, whether it was created; keys are distinct.

        ``channel`` is the one whose listeners are to be woken.
        """
        statement = sql.OFFER_BATCH_OR_UPDATE if can_update else sql.OFFER_BATCH_IF_NOT_EXISTS
        params = {
            "kind": kind, "keys": keys, "payloads": payloads, "schedules": schedules,
            "headers": headers, "now": now,
        }  # fmt: skip
        channels = [] if channel is None else [channel]
        (rows,) = fetch_all_and_notify(using, [(statement, params)], channels)
        return dict(rows)

    def find_offers(
        self,
        offers: Sequence[Offered],
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[FoundOffer]:
        """Return for each offer what is stored under its key."""
        keys, kinds, payloads, _, _, headers = map(list, zip(*offers, strict=True))
        params = {
            "keys": keys, "kinds": kinds, "payloads": payloads, "headers": headers, "now": now
        }  # fmt: skip
        return list(map(FoundOffer._make, fetch(using, sql.STORED_OFFERS, params)))

    def claim(
        self,
        kind: str,
        limit: int,
        lease_id: str,
        lease: int,
        *,
        strict: bool = False,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[LeasedRow]:
        """Lease up to ``limit`` of the earliest due messages, earliest first.

        A strict claim waits until no other of the kind is being made.
        """
        statement, params = claiming(
            kind, limit, lease_id, lease_id, lease, now=now, strict=strict, waits=True
        )
        return list(map(LeasedRow._make, earliest_first(fetch(using, statement, params))))

    def consume(
        self, kind: str, limit: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> list[ConsumedRow]:
        """Delete and return up to ``limit`` of the earliest due messages.

        The savepoint HANDLER is set behind it: what comes after can be undone, the deletion kept.
        """
        params = {"kind": kind, "limit": limit, "floor": NO_FLOOR, "now": now}
        rows = earliest_first(fetch_and_save(using, sql.CONSUME, params))
        return list(map(ConsumedRow._make, rows))

    def take(
        self, kind: str, limit: int, *, floor: int = NO_FLOOR, using: str = DEFAULT_DB_ALIAS
    ) -> list[Row]:
        """Delete and return as consume() does, without its savepoint: all is undone or nothing.

        Rows as of ``ConsumedRow``, but plain, for who takes many; earliest first.
        """
        params = {"kind": kind, "limit": limit, "floor": floor, "now": None}
        return earliest_first(fetch_at_once(using, sql.CONSUME, params))

    def restore(
        self, kind: str, row: ConsumedRow, lease_id: str, *, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        """Put a consumed message back under a lease, in the transaction that took it."""
        execute(using, sql.RESTORE, {**row._asdict(), "kind": kind, "lease_id": lease_id})

    def acknowledge(
        self, lease_id: str | None, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS
    ) -> list[int]:
        """Delete those messages that are under the lease; return their ids."""
        params = {"lease_id": lease_id, "ids": list(ids)}
        return [row[0] for row in fetch(using, sql.ACKNOWLEDGE, params)]

    def acknowledge_lease(self, lease_id: str, *, using: str = DEFAULT_DB_ALIAS) -> int:
        """Delete all messages under the lease; return how many."""
        return execute(using, sql.ACKNOWLEDGE_LEASE, {"lease_id": lease_id})

    def release(
        self,
        lease_id: str | None,
        ids: Sequence[int],
        *,
        delay: int | None = 0,
        refund: int = 0,
        error: str | None = None,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[int]:
        """End the lease of those messages, due again after the delay; return their ids.

        Without a delay they are due when they were before the lease.
        """
        params = {
            "lease_id": lease_id, "ids": list(ids), "delay": delay, "refund": refund,
            "error": error, "now": now,
        }  # fmt: skip
        return [row[0] for row in fetch(using, sql.RELEASE, params)]

    def extend(
        self,
        lease_ids: Sequence[str],
        ids: Sequence[int],
        lease: int,
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[ExtendedRow]:
        """Prolong those messages' leases; the ones not returned are lost."""
        params = {"lease_ids": list(lease_ids), "ids": list(ids), "lease": lease, "now": now}
        return list(map(ExtendedRow._make, fetch(using, sql.EXTEND, params)))

    def give_back(
        self,
        lease_ids: Sequence[str],
        *,
        begun: Sequence[int],
        suspects: Sequence[str],
        counts: bool,
        mark: str,
        using: str = DEFAULT_DB_ALIAS,
    ) -> int:
        """End a dead process's leases now, and mark what it had begun and its ``suspects``."""
        params = {
            "lease_ids": list(lease_ids), "begun": list(begun), "suspects": list(suspects),
            "refund": 0 if counts else 1, "mark": mark, "now": None,
        }  # fmt: skip
        return execute(using, sql.GIVE_BACK, params)

    def count_crash(
        self, mark: str, begun: Sequence[int], *, counts: bool, using: str = DEFAULT_DB_ALIAS
    ) -> int:
        """Mark messages that nobody holds, and count the delivery that a crash rolled back."""
        count = 1 if counts else 0
        params = {"lease_id": mark, "ids": list(begun), "count": count, "now": None}
        return execute(using, sql.COUNT_CRASH, params)

    def held(self, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS) -> list[int]:
        """Return those messages that another transaction holds, so that a write would wait."""
        return [row[0] for row in fetch(using, sql.HELD, {"ids": list(ids)})]

    def hold(
        self, lease_ids: Sequence[str], ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS
    ) -> list[tuple[int, str]]:
        """Hold those messages to the end of the transaction; return the ids and leases of the held.

        The others are gone, or no longer under their lease, or somebody is changing them.
        """
        params = {"lease_ids": list(set(lease_ids)), "ids": list(ids)}
        rows = fetch_at_once(using, sql.HOLD_LEASED, params)
        return [(row[0], row[1]) for row in rows]

    def bury(
        self,
        lease_id: str | None,
        ids: Sequence[int],
        reason: str,
        *,
        error: str | None = None,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[int]:
        """Move those messages to the dead letters; return their ids."""
        params = {
            "lease_id": lease_id, "ids": list(ids), "reason": reason, "error": error, "now": now
        }  # fmt: skip
        return [row[0] for row in fetch(using, sql.BURY, params)]

    def read(
        self, kind: str, key: str, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> StoredRow | None:
        rows = fetch(using, sql.READ, {"kind": kind, "key": key, "now": now})
        return StoredRow._make(rows[0]) if rows else None

    def has_key(self, kind: str, key: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        return bool(fetch(using, sql.CONTAINS, {"kind": kind, "key": key})[0][0])

    def drop(self, kind: str, key: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Delete the message whatever its state; return whether there was one."""
        return execute(using, sql.DROP, {"kind": kind, "key": key}) == 1

    def drop_all(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> int:
        return execute(using, sql.DROP_ALL, {"kind": kind})

    def next_due_of_kinds(
        self,
        kinds: Sequence[str],
        floors: Sequence[int],
        horizon: int,
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> dict[str, int]:
        """Return the milliseconds until each of the kinds has something due, where it has."""
        params = {"kinds": list(kinds), "floors": list(floors), "horizon": horizon, "now": now}
        return dict(fetch(using, sql.NEXT_DUE_OF_KINDS, params))

    def next_due(
        self, kind: str, horizon: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> int | None:
        """Return the milliseconds until the next message, if it falls due within the horizon."""
        rows = fetch(using, sql.NEXT_DUE, {"kind": kind, "horizon": horizon, "now": now})
        return rows[0][0] if rows else None

    def stats(
        self, kind: str, cap: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> StatsRow:
        return StatsRow._make(fetch(using, sql.STATS, {"kind": kind, "cap": cap, "now": now})[0])

    def kinds(self, limit: int, *, using: str = DEFAULT_DB_ALIAS) -> list[str]:
        """Return the kinds that have messages, at most ``limit``, in the index's order."""
        return [row[0] for row in fetch(using, sql.KINDS, {"limit": limit})]

    def overview(
        self,
        kinds: Sequence[str],
        cap: int,
        *,
        lease_cap: int,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[OverviewRow]:
        """Count each kind's messages, each count at most ``cap``, in any order."""
        params = {"kinds": list(kinds), "cap": cap, "lease_cap": lease_cap, "now": now}
        return list(map(OverviewRow._make, fetch(using, sql.OVERVIEW, params)))

    def limit_waits(self, milliseconds: int, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Have waits for locks fail after so long, until the open transaction ends."""
        fetch(using, sql.LIMIT_WAITS, {"milliseconds": milliseconds})

    def notify(self, channel: str, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Wake the listeners of a channel, at the commit of the open transaction if any."""
        notify(using, channel)
