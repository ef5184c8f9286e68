"""End and change leases: every write names the lease that it ends."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, column_of, rows_of
from delayed_queue.queue.store.fragments import (
    ATTEMPTS,
    FIRST_ERROR,
    HEADERS,
    LAST_ERROR,
    crash_error,
)

if TYPE_CHECKING:
    from delayed_queue.db.sql import Step

# Delete some members of a lease (or, with a NULL lease, rows that are not leased).
# Reads: the primary key; the lease is a filter on rows already found.
ACKNOWLEDGE: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" IS NOT DISTINCT FROM %(lease_id)s
RETURNING id
"""

# Delete some members of several leases, all of which belong to the caller.
# Reads: the primary key or delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_MEMBERS: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id
"""

# Delete all that is still under some leases, each handled to its last member.
# Reads: delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_LEASES: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id
"""

# Delete all that is still under a lease. Members that were updated, dropped, released or
# leased again no longer carry it (Q24).
# Reads: delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_LEASE: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE "lockUuid" = %(lease_id)s
"""

# Give messages back, due after the delay; %(refund)s takes deliveries that do not count off the
# count (a snooze, a message nobody has begun). With a NULL delay they are due when they were before
# the lease, so that what was not begun does not go behind a long backlog. With a NULL lease it
# moves rows that are not leased: "deliver now".
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

# Give back all that is under leases whose messages nobody has seen, but the named ones: the
# delivery is taken off the count.
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

# Tell who holds these leases that somebody else has ended something under them. Reads: nothing.
TELL_HOLDERS: Final[LiteralString] = """
SELECT pg_notify('delayed_queue_leases', lease_id)
FROM unnest(%(lease_ids)s::text[]) AS lease_id
"""

# End leases whose holder is gone. Messages that were begun, and those under the leases of suspects,
# get a mark: the id of a lease that nobody holds. By it the next claim sees that a delivery ended
# without an answer. The delivery is taken off the count; of messages that were begun %(refund)s
# is, which is 0 where one was alone in flight and so is known to have killed the process. So no
# message loses an attempt to a crash beside it. Those begun record the crash as their last error.
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

# Mark messages that a dead process had begun in a transaction, which its death rolled back. Count
# that delivery only if the message was alone in flight, as above. Such a message was due; one that
# is not is left alone: somebody has leased it by now, or updated it to another time.
# Reads: the primary key.
COUNT_CRASH: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue
SET attempts = {ATTEMPTS} + %(count)s::integer,
    headers = {HEADERS},
    "firstError" = {FIRST_ERROR},
    "lastError" = {crash_error(LAST_ERROR)},
    "versionAt" = "createdAt",
    "lockUuid" = %(lease_id)s,
    "dueAt" = "scheduledAt",
    "scheduledAt" = (SELECT now FROM clock)
WHERE id = ANY (%(ids)b::bigint[])
    AND COALESCE("scheduledAt" <= (SELECT now FROM clock), false)
RETURNING id
"""

# Those of the messages that another transaction holds at this moment: a write would wait for it.
# The locks taken on the others end with the statement.
# Reads: the primary key.
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

# Prolong leases, never shorten them. Several leases at once, so that a worker renews all it
# holds in one statement (W3): a row matches only if it is one of the named messages *and* is
# under one of the named leases, both of which belong to the caller.
# Reads: the primary key or delayed_queue__LockUuidPlusIdIndex.
EXTEND: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue
SET "scheduledAt" = GREATEST("scheduledAt", (SELECT now FROM clock) + %(lease)s::bigint)
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id, "lockUuid", "scheduledAt"
"""

# Move messages to the dead letters in one statement: in the queue or there, never both, never
# neither (Q28). Reads: the primary key.
DEAD_LETTER: Final[LiteralString] = f"""{CLOCK},
dead_lettered AS (
    DELETE FROM delayed_queue
    WHERE id = ANY (%(ids)b::bigint[])
        AND "lockUuid" IS NOT DISTINCT FROM %(lease_id)s
    RETURNING
        id, "pKind", "pKey", payload, {HEADERS} AS headers, {ATTEMPTS} AS attempts,
        {FIRST_ERROR} AS "firstError", {LAST_ERROR} AS "lastError",
        "scheduledAtInitially", "createdAt", "group"
),
kept AS (
    INSERT INTO delayed_queue_dead_letter (
        "pKind", "pKey", payload, headers, attempts, reason, "firstError", "lastError",
        "scheduledAtInitially", "createdAt", "diedAt", fingerprint, "group"
    )
    SELECT
        "pKind", "pKey", payload, headers, attempts, %(reason)s,
        COALESCE("firstError", %(error)s::text),
        COALESCE(%(error)s::text, "lastError"),
        "scheduledAtInitially", "createdAt", (SELECT now FROM clock), %(fingerprint)s::text, "group"
    FROM dead_lettered
)
SELECT id
FROM dead_lettered
"""

# Members of a lease as they are now, of one kind, in the order in which they fell due: those that
# were settled, updated or leased again meanwhile are not among them. The kind is compared as an
# expression, so that no index of it is read in place of these.
# Reads: the primary key, or delayed_queue__LockUuidPlusIdIndex.
LEASED_MEMBERS: Final[LiteralString] = """
SELECT
    id, "pKey", payload, "scheduledAtInitially", COALESCE("dueAt", "scheduledAt"), "scheduledAt",
    attempts, headers::text, "group"
FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = %(lease_id)s
    AND "pKind" || '' = %(kind)s
ORDER BY COALESCE("dueAt", "scheduledAt"), id
"""

# Lock messages that are still under their leases until the end of the transaction: statements
# that delete, update or extend one wait for it. One that somebody is changing is passed over, as
# are those that are gone. Reads: the primary key, or delayed_queue__LockUuidPlusIdIndex.
HOLD_LEASED: Final[LiteralString] = """
SELECT id, "lockUuid"
FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (%(lease_ids)b::text[])
FOR SHARE SKIP LOCKED
"""


class ExtendedRow(NamedTuple):
    """A lease that was prolonged."""

    id: int
    lease_id: str
    leased_until: int


class HeldRow(NamedTuple):
    """A message that is held, and its lease."""

    id: int
    lease_id: str


class MemberRow(NamedTuple):
    """A member of a lease as it is now."""

    id: int
    key: str
    payload: bytes
    scheduled_at: int
    due_at: int
    leased_until: int
    attempts: int
    headers: str | None
    group: str | None


def acknowledging_leases(lease_ids: Sequence[str]) -> Step:
    """Delete all that is still under the leases; answered by the ids deleted."""
    return ACKNOWLEDGE_LEASES, {"lease_ids": list(lease_ids)}


def acknowledging_members(lease_ids: Sequence[str], ids: Sequence[int]) -> Step:
    """Delete those messages that are still under the leases; answered by the ids deleted."""
    return ACKNOWLEDGE_MEMBERS, {"lease_ids": list(lease_ids), "ids": list(ids)}


def releasing(
    lease_id: str, ids: Sequence[int], delay: int | None, refund: int, error: str | None
) -> Step:
    """End the lease of messages, due again after the delay; answered by their ids.

    Without a delay they are due when they were.
    """
    params = {
        "lease_id": lease_id, "ids": list(ids), "delay": delay, "refund": refund,
        "error": error, "now": None,
    }  # fmt: skip
    return RELEASE, params


def dead_lettering(lease_id: str, message_id: int, reason: str, error: str | None) -> Step:
    """Move a message to the dead letters; answered by its id."""
    return DEAD_LETTER, _dead(lease_id, [message_id], reason, error, None)


def _dead(
    lease_id: str | None, ids: Sequence[int], reason: str, error: str | None, now: int | None
) -> dict[str, Any]:
    # Loaded with the first failure.
    from delayed_queue.queue.fingerprints import fingerprint

    return {
        "lease_id": lease_id, "ids": list(ids), "reason": reason, "error": error, "now": now,
        "fingerprint": fingerprint(reason, error),
    }  # fmt: skip


def returning_leases(lease_ids: Sequence[str], suspects: Sequence[str] = ()) -> Step:
    """Release all messages leased by claims whose answers were lost, without counting attempts."""
    params = {
        "lease_ids": [*lease_ids, *suspects], "begun": [], "suspects": list(suspects),
        "refund": 1, "mark": str(uuid.uuid4()), "error": "", "now": None,
    }  # fmt: skip
    return GIVE_BACK, params


class SettleStore:
    """The statements that end and change leases."""

    def acknowledge(
        self, lease_id: str | None, ids: Sequence[int], *, using: str = db.DEFAULT_ALIAS
    ) -> list[int]:
        """Delete those messages that are under the lease; return their ids."""
        params = {"lease_id": lease_id, "ids": list(ids)}
        return column_of(db.fetch(using, ACKNOWLEDGE, params))

    def acknowledge_lease(self, lease_id: str, *, using: str = db.DEFAULT_ALIAS) -> int:
        """Delete all messages under the lease; return how many."""
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
        """End the lease of those messages, due again after the delay; return their ids.

        Without a delay they are due when they were before the lease.
        """
        params = {
            "lease_id": lease_id, "ids": list(ids), "delay": delay, "refund": refund,
            "error": error, "now": now,
        }  # fmt: skip
        return column_of(db.fetch(using, RELEASE, params))

    def tell_holders(self, lease_ids: Sequence[str], *, using: str = db.DEFAULT_ALIAS) -> None:
        """Have the workers that hold these leases ask what is left of them, at the commit."""
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
        """Prolong those messages' leases; the ones not returned are lost."""
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
        """End a dead process's leases now, and mark what it had begun and its ``suspects``."""
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
        error: str = "",
        using: str = db.DEFAULT_ALIAS,
    ) -> int:
        """Mark messages that nobody holds; count the delivery that a crash rolled back if known."""
        params = {
            "lease_id": mark, "ids": list(begun), "count": 1 if counts else 0, "error": error,
            "now": None,
        }  # fmt: skip
        return db.execute(using, COUNT_CRASH, params)

    def held(self, ids: Sequence[int], *, using: str = db.DEFAULT_ALIAS) -> list[int]:
        """Return those messages that another transaction holds, so that a write would wait."""
        return column_of(db.fetch(using, HELD, {"ids": list(ids)}))

    def hold(
        self, lease_ids: Sequence[str], ids: Sequence[int], *, using: str = db.DEFAULT_ALIAS
    ) -> list[HeldRow]:
        """Hold those messages to the end of the transaction; return those that are held.

        The others are gone, or no longer under their lease, or somebody is changing them.
        """
        params = {"lease_ids": list(set(lease_ids)), "ids": list(ids)}
        return rows_of(HeldRow, db.fetch(using, HOLD_LEASED, params))

    def dead_letter(
        self,
        lease_id: str | None,
        ids: Sequence[int],
        reason: str,
        *,
        error: str | None = None,
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> list[int]:
        """Move those messages to the dead letters; return their ids."""
        params = _dead(lease_id, ids, reason, error, now)
        return column_of(db.fetch(using, DEAD_LETTER, params))
