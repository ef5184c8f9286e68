"""Endpoints, hosts and attempts: the statements, and the managers that run them."""

from __future__ import annotations

from typing import Final, LiteralString, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.clock import read_clock
from delayed_queue.db.sql import CLOCK, first_row
from delayed_queue.db.statements import execute, fetch, run
from delayed_queue.rates import Event

# Milliseconds from now until a host is half open, and until its probe expires. No row: closed.
# Reads: host_name.
READ_HOST: Final[LiteralString] = f"""{CLOCK}
SELECT "openUntil" - now, "probeUntil" - now
FROM delayed_queue_host
CROSS JOIN clock
WHERE name = %(host)s
    AND "openUntil" IS NOT NULL
"""

# Open a closed host. Late results of other callbacks do not prolong the pause of an open one.
# Reads: host_name.
OPEN_HOST: Final[LiteralString] = f"""{CLOCK}
INSERT INTO delayed_queue_host AS host (name, "openedAt", "openUntil", openings, reason)
SELECT %(host)s, now, now + %(pause)s::bigint, 1, %(reason)s
FROM clock
ON CONFLICT (name) DO UPDATE
SET "openedAt" = EXCLUDED."openedAt",
    "openUntil" = EXCLUDED."openUntil",
    openings = 1,
    reason = EXCLUDED.reason,
    "probeBy" = NULL,
    "probeUntil" = NULL
WHERE host."openUntil" IS NULL
RETURNING id
"""

# Take the only probe of a half open host: its pause is over, and no probe is under way or the last
# one has expired. The row's lock admits one worker; the others then read its change.
# Reads: host_name.
PROBE_HOST: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue_host
SET "probeBy" = %(by)s,
    "probeUntil" = (SELECT now FROM clock) + %(timeout)s::bigint
WHERE name = %(host)s
    AND "openUntil" <= (SELECT now FROM clock)
    AND ("probeUntil" IS NULL OR "probeUntil" <= (SELECT now FROM clock))
RETURNING id
"""

# Write the result of a probe, unless another worker has the probe by now. A host that still fails
# stays open twice as long as before, up to the longest pause. After DROP the next worker probes.
# Reads: host_name.
END_PROBE: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue_host
SET "openUntil" = CASE %(event)s::text
        WHEN 'SUCCEED' THEN NULL
        WHEN 'FAIL' THEN (SELECT now FROM clock) + least(
            %(longest)s::bigint, %(pause)s::bigint * (2 ^ least(openings, 20))::bigint
        )
        ELSE "openUntil"
    END,
    openings = CASE %(event)s::text
        WHEN 'SUCCEED' THEN 0
        WHEN 'FAIL' THEN openings + 1
        ELSE openings
    END,
    "probeBy" = NULL,
    "probeUntil" = NULL
WHERE name = %(host)s
    AND "probeBy" = %(by)s
RETURNING id
"""

# Lock the endpoint's slots. It is a statement of its own, so that the snapshot of TAKE_SLOT
# includes the commits of earlier holders. Reads: the primary key.
LOCK_SLOTS: Final[LiteralString] = """
SELECT concurrency
FROM delayed_queue_endpoint
WHERE id = %(id)s
FOR NO KEY UPDATE
"""

# Take a slot if there is a free one, and delete expired ones: those of dead workers. Runs under
# LOCK_SLOTS. Reads: slot_endpoint_holder.
TAKE_SLOT: Final[LiteralString] = f"""{CLOCK},
expired AS (
    DELETE FROM delayed_queue_slot
    WHERE endpoint_id = %(id)s
        AND "heldUntil" <= (SELECT now FROM clock)
)
INSERT INTO delayed_queue_slot (endpoint_id, holder, "heldUntil")
SELECT %(id)s, %(holder)s, now + %(timeout)s::bigint
FROM clock
WHERE (
    SELECT count(*)
    FROM delayed_queue_slot
    WHERE endpoint_id = %(id)s
        AND "heldUntil" > (SELECT now FROM clock)
) < %(concurrency)s::integer
RETURNING id
"""

# Delete attempts older than the age, the oldest first, skipping rows that another prune has locked.
# Reads: attempt_started, then the primary key.
PRUNE_ATTEMPTS: Final[LiteralString] = f"""{CLOCK}
DELETE FROM delayed_queue_callback_attempt
WHERE id = ANY (ARRAY(
    SELECT id
    FROM delayed_queue_callback_attempt
    WHERE "startedAt" < (SELECT now FROM clock) - %(age)s::bigint
    ORDER BY "startedAt", id
    LIMIT (SELECT %(limit)s::integer)
    FOR UPDATE SKIP LOCKED
))
"""

MAX_PREFIXES: Final = 10_000

M = TypeVar("M", bound=models.Model)


class HostRow(NamedTuple):
    """Milliseconds until an open host is half open, and until its probe expires."""

    open_for: int
    probed_for: int | None


class EndpointManager(models.Manager[M]):
    """The statements of endpoints and their slots."""

    def of_origin(self, origin: str, *, using: str = DEFAULT_DB_ALIAS) -> list[M]:
        """Return the endpoints of an origin; the caller chooses the longest prefix that matches."""
        return list(self.using(using).filter(origin=origin).order_by("prefix")[:MAX_PREFIXES])

    def disable(
        self, endpoint_id: int, reason: str, *, using: str = DEFAULT_DB_ALIAS
    ) -> bool:  # fmt: skip
        """Disable the endpoint; return False, and change nothing, if it is disabled."""
        rows = self.using(using).filter(pk=endpoint_id, disabled_at=None)
        return rows.update(disabled_at=read_clock(using), disabled_reason=reason) > 0

    def take_slot(
        self, endpoint_id: int, holder: str, concurrency: int, *, timeout: int,
        now: int | None = None, using: str = DEFAULT_DB_ALIAS,
    ) -> bool:  # fmt: skip
        """Take one of the slots for at most ``timeout`` ms; return whether one was free."""
        params = {
            "id": endpoint_id, "holder": holder, "concurrency": concurrency, "timeout": timeout,
            "now": now,
        }  # fmt: skip
        lock = (LOCK_SLOTS, {"id": endpoint_id})
        _, taken = run(using, [lock, (TAKE_SLOT, params)])
        return bool(taken)


class HostManager(models.Manager[M]):
    """The statements of the circuit breaker."""

    def read(
        self, host: str, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> HostRow | None:
        """Return how long the host stays open; None when it is closed."""
        rows = fetch(using, READ_HOST, {"host": host, "now": now})
        return first_row(HostRow, rows)

    def open(
        self, host: str, reason: str, *, pause: int, now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:  # fmt: skip
        """Open the host for ``pause`` ms; return False, and change nothing, if it is open."""
        params = {"host": host, "reason": reason, "pause": pause, "now": now}
        return bool(fetch(using, OPEN_HOST, params))

    def close(self, host: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Close the host; return False, and change nothing, if it is closed.

        END_PROBE then ignores the result of a probe under way.
        """
        rows = self.using(using).filter(name=host, open_until__isnull=False)
        return rows.update(open_until=None, openings=0, probe_by=None, probe_until=None) > 0

    def probe(
        self, host: str, by: str, *, timeout: int, now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:  # fmt: skip
        """Take the probe of a half open host for ``timeout`` ms; return whether it was free."""
        params = {"host": host, "by": by, "timeout": timeout, "now": now}
        return bool(fetch(using, PROBE_HOST, params))

    def end_probe(
        self, host: str, by: str, event: Event, *, pause: int, longest: int,
        now: int | None = None, using: str = DEFAULT_DB_ALIAS,
    ) -> bool:  # fmt: skip
        """Apply the result of a probe; return False if another worker has the probe by now."""
        params = {
            "host": host, "by": by, "event": event.name, "pause": pause, "longest": longest,
            "now": now,
        }  # fmt: skip
        return bool(fetch(using, END_PROBE, params))


class AttemptManager(models.Manager[M]):
    """The statements of the log of attempts."""

    def of_job(
        self, key: str, topic: str | None = None, *, after: int = 0, limit: int = 100,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[M]:  # fmt: skip
        """Return attempts of the key, in one topic or in all, in the order of the log."""
        rows = self.using(using).filter(key=key, id__gt=after)
        found = rows if topic is None else rows.filter(topic=topic)
        return list(found.order_by("key", "id")[:limit])

    def prune(
        self, age: int, limit: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> int:
        """Delete up to ``limit`` attempts older than ``age`` ms; return their number."""
        return execute(using, PRUNE_ATTEMPTS, {"age": age, "limit": limit, "now": now})
