"""Settle leased messages and change leases: every write names the lease."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, column_of, rows_of
from delayed_queue.queue.store.finishing import DIED, DONE, settle_members
from delayed_queue.queue.store.fragments import (
    ATTEMPTS,
    EXPIRES_AT,
    FIRST_ERROR,
    HEADERS,
    LAST_ERROR,
    crash_error,
)

if TYPE_CHECKING:
    from delayed_queue.db.sql import Step

# Delete members of a lease or, with a NULL lease, rows without one. Reads: the primary key.
ACKNOWLEDGE: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" IS NOT DISTINCT FROM %(lease_id)s
RETURNING id
"""

# Delete members of several leases. Reads: the primary key or delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_MEMBERS: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id
"""

# Delete what is still under leases that were handled completely.
# Reads: delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_LEASES: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id
"""

# Delete what is still under a lease: not members that were updated, dropped, released or leased
# again (Q24).
# Reads: delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_LEASE: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE "lockUuid" = %(lease_id)s
"""

# Release messages, due after the delay or, with a NULL delay, at their old due time, so that they
# keep their position in a backlog. %(refund)s deliveries do not count (a snooze, a message that was
# not begun). With a NULL lease it moves rows without one: "deliver now".
# Reads: the primary key.
RELEASE: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue
SET "scheduledAt" = COALESCE(
        (SELECT now FROM clock) + %(delay)s::bigint, "dueAt", (SELECT now FROM clock)
    ),
    "lockUuid" = NULL,
    attempts = GREATEST(attempts - %(refund)s::integer, 0),
    "firstError" = COALESCE("firstError", %(error)s::text),
    "lastError" = COALESCE(%(error)s::text, "lastError")
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" IS NOT DISTINCT FROM %(lease_id)s
RETURNING id
"""

# Release everything under leases except the named messages, without counting the delivery.
# Reads: delayed_queue__LockUuidPlusIdIndex.
RELEASE_LEASES: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue
SET "scheduledAt" = (SELECT now FROM clock),
    "lockUuid" = NULL,
    attempts = GREATEST(attempts - 1, 0)
WHERE "lockUuid" = ANY (%(lease_ids)b::text[])
    AND id <> ALL (%(ids)b::bigint[])
RETURNING id
"""

# Notify the workers that hold these leases that someone else has ended them. Reads: nothing.
TELL_HOLDERS: Final[LiteralString] = """
SELECT pg_notify('delayed_queue_leases', lease_id)
FROM unnest(%(lease_ids)s::text[]) AS lease_id
"""

# End the leases of a dead process. Messages that were begun, and those of suspects, are marked with
# the id of a lease without a holder, so that the next claim takes them as suspects. Deliveries do
# not count, so no message loses an attempt to a crash beside it. Messages that were begun get
# %(refund)s back: 0 where one was alone in flight and so has killed the process. They record the
# crash as their last error.
# Reads: delayed_queue__LockUuidPlusIdIndex.
GIVE_BACK: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue
SET "scheduledAt" = (SELECT now FROM clock),
    "lockUuid" = CASE
        WHEN id = ANY (%(begun)b::bigint[]) OR "lockUuid" = ANY (%(suspects)b::text[])
        THEN %(mark)s::varchar
    END,
    attempts = GREATEST(
        attempts - CASE WHEN id = ANY (%(begun)b::bigint[]) THEN %(refund)s::integer ELSE 1 END, 0
    ),
    "lastError" = CASE
        WHEN id = ANY (%(begun)b::bigint[]) THEN {crash_error('"lastError"')}
        ELSE "lastError"
    END
WHERE "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id
"""

# Mark messages that a dead process had begun in a transaction, which was rolled back. The delivery
# counts as in GIVE_BACK. Messages that are not due are skipped: they were leased or updated since.
# The first message of a batch keeps its due time (%(stays)s), so that the next batch is the same.
# Reads: the primary key.
COUNT_CRASH: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue
SET attempts = {ATTEMPTS} + %(count)s::integer,
    headers = {HEADERS},
    "firstError" = {FIRST_ERROR},
    "lastError" = {crash_error(LAST_ERROR)},
    "expiresAt" = {EXPIRES_AT},
    "versionAt" = "createdAt",
    "lockUuid" = %(lease_id)s,
    "dueAt" = "scheduledAt",
    "scheduledAt" = CASE
        WHEN %(stays)s::boolean THEN "scheduledAt" ELSE (SELECT now FROM clock)
    END
WHERE id = ANY (%(ids)b::bigint[])
    AND COALESCE("scheduledAt" <= (SELECT now FROM clock), false)
RETURNING id
"""

# The messages that another transaction has locked, so that a write would wait. The locks on the
# others end with the statement. Reads: the primary key.
HELD: Final[LiteralString] = """
WITH free AS (
    SELECT id
    FROM delayed_queue
    WHERE id = ANY (%(ids)b::bigint[])
    FOR UPDATE SKIP LOCKED
)
SELECT id
FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND id NOT IN (SELECT id FROM free)
"""

# Prolong leases, never shorten them. A worker renews all its leases in one statement (W3), so a row
# must be one of the messages and under one of the leases.
# Reads: the primary key or delayed_queue__LockUuidPlusIdIndex.
EXTEND: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue
SET "scheduledAt" = GREATEST("scheduledAt", (SELECT now FROM clock) + %(lease)s::bigint)
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id, "lockUuid", "scheduledAt"
"""

# Move messages to the dead letters: in the queue or there, never both or neither (Q28). They stay
# members of a batch that waits for them.
# Reads: the primary key.
DEAD_LETTER: Final[LiteralString] = f"""{CLOCK},
dead_lettered AS (
    DELETE FROM delayed_queue
    WHERE id = ANY (%(ids)b::bigint[])
        AND "lockUuid" IS NOT DISTINCT FROM %(lease_id)s
    RETURNING
        id, "pKind", "pKey", payload, {HEADERS} AS headers, {ATTEMPTS} AS attempts,
        {FIRST_ERROR} AS "firstError", {LAST_ERROR} AS "lastError",
        "scheduledAtInitially", "createdAt", "group", (
            SELECT batch.id
            FROM delayed_queue_batch AS batch
            WHERE batch.id = "batchId"
                AND "waitsForDead"
        ) AS "batchId"
),
kept AS (
    INSERT INTO delayed_queue_dead_letter (
        "pKind", "pKey", payload, headers, attempts, reason, "firstError", "lastError",
        "scheduledAtInitially", "createdAt", "diedAt", fingerprint, "group",
        "lockUuid", "batchId"
    )
    SELECT
        "pKind", "pKey", payload, headers, attempts, %(reason)s,
        COALESCE("firstError", %(error)s::text),
        COALESCE(%(error)s::text, "lastError"),
        "scheduledAtInitially", "createdAt", (SELECT now FROM clock), %(fingerprint)s::text,
        "group", %(lease_id)s::text, "batchId"
    FROM dead_lettered
)
SELECT id
FROM dead_lettered
"""

# Members of a lease as they are now, as LeasedRow, in the order of their due times. The kind is
# compared as an expression, so that the planner does not read its index.
# Reads: the primary key or delayed_queue__LockUuidPlusIdIndex.
LEASED_MEMBERS: Final[LiteralString] = f"""{CLOCK}
SELECT
    id, "pKey", payload, "scheduledAtInitially", COALESCE("dueAt", "scheduledAt"), "scheduledAt",
    attempts, headers::text, NULL::bigint, false, "group", "batchId"
FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = %(lease_id)s
    AND "pKind" || '' = %(kind)s
    AND ({EXPIRES_AT} > (SELECT now FROM clock)) IS NOT FALSE
ORDER BY COALESCE("dueAt", "scheduledAt"), id
"""

# Lock messages that are under their leases until the end of the transaction: statements that change
# one wait. Skips messages that are gone or locked.
# Reads: the primary key or delayed_queue__LockUuidPlusIdIndex.
HOLD_LEASED: Final[LiteralString] = """
SELECT id, "lockUuid"
FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (%(lease_ids)b::text[])
FOR SHARE SKIP LOCKED
"""


class ExtendedRow(NamedTuple):
    """A message whose lease was prolonged."""

    id: int
    lease_id: str
    leased_until: int


class HeldRow(NamedTuple):
    """A locked message and its lease."""

    id: int
    lease_id: str


def acknowledge_leases_step(lease_ids: Sequence[str]) -> Step:
    """Delete everything that is still under the leases; returns the deleted ids."""
    return ACKNOWLEDGE_LEASES, {"lease_ids": list(lease_ids)}


def acknowledge_members_step(lease_ids: Sequence[str], ids: Sequence[int]) -> Step:
    """Delete those messages that are still under the leases; returns the deleted ids."""
    return ACKNOWLEDGE_MEMBERS, {"lease_ids": list(lease_ids), "ids": list(ids)}


def release_step(
    lease_id: str | None,
    ids: Sequence[int],
    delay: int | None,
    refund: int,
    error: str | None,
    now: int | None = None,
) -> Step:
    """End the lease of messages, due again after the delay; returns their ids.

    Without a delay they are due at their old due time.
    """
    params = {
        "lease_id": lease_id, "ids": list(ids), "delay": delay, "refund": refund,
        "error": error, "now": now,
    }  # fmt: skip
    return RELEASE, params


def dead_letter_step(
    lease_id: str | None,
    ids: Sequence[int],
    reason: str,
    error: str | None,
    now: int | None = None,
) -> Step:
    """Move messages to the dead letters; returns their ids."""
    # Loaded with the first failure.
    from delayed_queue.queue.fingerprints import fingerprint

    params = {
        "lease_id": lease_id, "ids": list(ids), "reason": reason, "error": error, "now": now,
        "fingerprint": fingerprint(reason, error),
    }  # fmt: skip
    return DEAD_LETTER, params


def return_leases_step(lease_ids: Sequence[str], suspects: Sequence[str] = ()) -> Step:
    """Release all messages leased by claims whose replies were lost, without counting attempts."""
    params = {
        "lease_ids": [*lease_ids, *suspects], "begun": [], "suspects": list(suspects),
        "refund": 1, "mark": str(uuid.uuid4()), "error": "", "now": None,
    }  # fmt: skip
    return GIVE_BACK, params


class SettleStore:
    """The statements that settle messages and change leases."""

    def acknowledge(
        self,
        lease_id: str | None,
        ids: Sequence[int],
        *,
        outcome: str = DONE,
        batches: Collection[int] = (),
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> list[int]:
        """Delete those messages that are under the lease; return their ids.

        They leave their ``batches`` with the outcome.
        """
        step = ACKNOWLEDGE, {"lease_id": lease_id, "ids": list(ids)}
        return column_of(settle_members(using, step, lease_id, ids, outcome, batches, now))

    def acknowledge_lease(self, lease_id: str, *, using: str = db.DEFAULT_ALIAS) -> int:
        """Delete all messages under the lease; return their number."""
        return db.execute(using, ACKNOWLEDGE_LEASE, {"lease_id": lease_id})

    def release(
        self,
        lease_id: str | None,
        ids: Sequence[int],
        *,
        delay: int | None = 0,
        refund: int = 0,
        error: str | None = None,
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> list[int]:
        """End the lease of those messages as ``release_step`` does; return their ids."""
        return column_of(db.fetch(using, *release_step(lease_id, ids, delay, refund, error, now)))

    def tell_holders(self, lease_ids: Sequence[str], *, using: str = db.DEFAULT_ALIAS) -> None:
        """Notify the workers that hold these leases, at the commit."""
        db.execute(using, TELL_HOLDERS, {"lease_ids": list(lease_ids)})

    def extend(
        self,
        lease_ids: Sequence[str],
        ids: Sequence[int],
        lease: int,
        *,
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> list[ExtendedRow]:
        """Prolong the leases of messages; those that are not returned are lost."""
        params = {"lease_ids": list(lease_ids), "ids": list(ids), "lease": lease, "now": now}
        return rows_of(ExtendedRow, db.fetch(using, EXTEND, params))

    def give_back(
        self,
        lease_ids: Sequence[str],
        *,
        begun: Sequence[int],
        suspects: Sequence[str],
        counts: bool,
        mark: str,
        error: str = "",
        using: str = db.DEFAULT_ALIAS,
    ) -> int:
        """End the leases of a dead process; mark what it had begun and its ``suspects``."""
        params = {
            "lease_ids": list(lease_ids), "begun": list(begun), "suspects": list(suspects),
            "refund": 0 if counts else 1, "mark": mark, "error": error, "now": None,
        }  # fmt: skip
        return db.execute(using, GIVE_BACK, params)

    def count_crash(
        self,
        mark: str,
        begun: Sequence[int],
        *,
        counts: bool,
        stays: bool = False,
        error: str = "",
        using: str = db.DEFAULT_ALIAS,
    ) -> int:
        """Mark messages that a crash rolled back; count the delivery if ``counts``."""
        params = {
            "lease_id": mark, "ids": list(begun), "count": 1 if counts else 0, "error": error,
            "stays": stays, "now": None,
        }  # fmt: skip
        return db.execute(using, COUNT_CRASH, params)

    def held(self, ids: Sequence[int], *, using: str = db.DEFAULT_ALIAS) -> list[int]:
        """Return those messages that another transaction has locked."""
        return column_of(db.fetch(using, HELD, {"ids": list(ids)}))

    def hold(
        self, lease_ids: Sequence[str], ids: Sequence[int], *, using: str = db.DEFAULT_ALIAS
    ) -> list[HeldRow]:
        """Lock messages that are under their leases until the transaction ends; return them."""
        params = {"lease_ids": list(set(lease_ids)), "ids": list(ids)}
        return rows_of(HeldRow, db.fetch(using, HOLD_LEASED, params))

    def dead_letter(
        self,
        lease_id: str | None,
        ids: Sequence[int],
        reason: str,
        *,
        error: str | None = None,
        batches: Collection[int] = (),
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> list[int]:
        """Move those messages, which may leave their ``batches``, to the dead letters."""
        step = dead_letter_step(lease_id, ids, reason, error, now)
        return column_of(settle_members(using, step, lease_id, ids, DIED, batches, now))
