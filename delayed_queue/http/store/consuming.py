"""Statements that lease due jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, LiteralString

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.db.sql import CLOCK, rows_of
from delayed_queue.db.statements import fetch
from delayed_queue.queue.store.claim import (
    LeasedRow,
    earliest_first,
    lease_due,
    select_due_of_kinds,
)
from delayed_queue.queue.store.fragments import LEASED_COLUMNS

# A job may carry its own ttr in seconds; %(ttr)s in milliseconds takes precedence.
_TTR: Final[LiteralString] = """COALESCE(
        %(ttr)s::bigint,
        CASE
            WHEN "versionAt" <> "createdAt" THEN NULL
            WHEN jsonb_typeof(headers -> 'ttr') = 'number'
            THEN LEAST(GREATEST((headers ->> 'ttr')::numeric * 1000, 1), 86400000)::bigint
        END,
        %(default_ttr)s::bigint
    )"""

# Lease due jobs of several kinds, everything of the first kind before the next.
# Reads: as CLAIM, one descent for each kind.
POP_JOBS: Final[LiteralString] = CLOCK + lease_due(
    select_due_of_kinds(limited="asked.kind"),
    lease_id="%(lease_id)s::varchar",
    lease=_TTR,
    returning=f"""{LEASED_COLUMNS}, false, "group", "batchId\"""",
)

# Change how long the messages of a lease are held, from now on; each has its own time.
# Reads: the primary key.
HOLD_FOR: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue
SET "scheduledAt" = (SELECT now FROM clock)
    + (%(ttrs)b::bigint[])[array_position(%(ids)b::bigint[], id)]
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (ARRAY[%(lease_id)s::varchar])
RETURNING id, "scheduledAt"
"""


class ConsumeStore:
    """The statements about jobs that fall due."""

    def pop(
        self,
        kinds: Sequence[str],
        limit: int,
        lease_id: str,
        *,
        ttr: int | None,
        default_ttr: int,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[LeasedRow]:
        """Lease due jobs of the kinds, from the first that has some on; earliest first."""
        params = {
            "kinds": list(kinds), "limit": limit, "lease_id": lease_id, "ttr": ttr,
            "default_ttr": default_ttr, "now": now,
        }  # fmt: skip
        return earliest_first(rows_of(LeasedRow, fetch(using, POP_JOBS, params)))

    def hold_for(
        self, lease_id: str, ttrs: Mapping[int, int], *, using: str = DEFAULT_DB_ALIAS
    ) -> dict[int, int]:
        """Hold messages of the lease for their own times in ms; return until when, by id."""
        params = {
            "lease_id": lease_id, "ids": list(ttrs), "ttrs": list(ttrs.values()), "now": None,
        }  # fmt: skip
        return dict(fetch(using, HOLD_FOR, params))
