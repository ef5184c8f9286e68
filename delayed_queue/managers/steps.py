"""The statements of a worker's turn, to be run together in one round trip and one commit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from delayed_queue import sql
from delayed_queue.statements import Row, fetch_all_and_notify

# A statement and its parameters.
Step = tuple[str, dict[str, Any]]

# Below any time: a claim from the start of the queue.
NO_FLOOR: Final = -(2**63 - 1)

# The order of a claim: the due time, then the id.
_ORDER: Final = itemgetter(4, 0)


def claiming(
    kind: str,
    limit: int,
    lease_id: str,
    retaken_id: str,
    lease: int,
    *,
    floor: int = NO_FLOOR,
    now: int | None = None,
    strict: bool = False,
    waits: bool = False,
) -> Step:
    """Lease up to ``limit`` of the earliest due messages from the floor on.

    Those whose last lease ran out unsettled come under ``retaken_id``, the others under
    ``lease_id``. Answered by rows as of ``LeasedRow``, in no order. A strict one is the only one
    at a time: it waits for its turn, or finds nothing when it is not.
    """
    params = {
        "kind": kind, "limit": limit, "lease_id": lease_id, "retaken_id": retaken_id,
        "lease": lease, "floor": floor, "now": now,
    }  # fmt: skip
    return (sql.CLAIM_STRICT, params | {"waits": waits}) if strict else (sql.CLAIM, params)


def claiming_past(
    kind: str, limit: int, lease_id: str, retaken_id: str, lease: int, passed: Sequence[str],
    after: tuple[int, int], looked: int, *, now: int | None = None,
) -> Step:  # fmt: skip
    """Lease as ``claiming`` does behind a due time and id, but nothing with such a url.

    ``passed`` are beginnings of urls that reach at least to the sign behind the host. At most so
    many messages are looked at; ``without_edge`` reads the answer.
    """
    params = {
        "kind": kind, "limit": limit, "lease_id": lease_id, "retaken_id": retaken_id,
        "lease": lease, "passed": list(passed), "after": after[0], "after_id": after[1],
        "looked": looked, "now": now,
    }  # fmt: skip
    return sql.CLAIM_PASSING, params


def without_edge(rows: list[Row]) -> tuple[list[Row], tuple[int, int] | None]:
    """Return what ``claiming_past`` leased, and behind which due time and id there is more."""
    edges = [(row[4], row[0]) for row in rows if row[1] is None]
    return [row for row in rows if row[1] is not None], edges[0] if edges else None


def trying_alone(kind: str) -> Step:
    """Answered by whether a strict claim behind it, in the same transaction, has its turn."""
    return sql.TRY_ALONE, {"kind": kind}


def earliest_first(rows: list[Row]) -> list[Row]:
    """Put the rows of a claim in order, in place."""
    rows.sort(key=_ORDER)
    return rows


def acknowledging_leases(lease_ids: Sequence[str]) -> Step:
    """Delete all that is still under the leases; answered by the ids deleted."""
    return sql.ACKNOWLEDGE_LEASES, {"lease_ids": list(lease_ids)}


def acknowledging_members(lease_ids: Sequence[str], ids: Sequence[int]) -> Step:
    """Delete those messages that are still under the leases; answered by the ids deleted."""
    return sql.ACKNOWLEDGE_MEMBERS, {"lease_ids": list(lease_ids), "ids": list(ids)}


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
    return sql.RELEASE, params


def burying(lease_id: str, message_id: int, reason: str, error: str | None) -> Step:
    """Move a message to the dead letters; answered by its id."""
    params = {
        "lease_id": lease_id, "ids": [message_id], "reason": reason, "error": error, "now": None
    }  # fmt: skip
    return sql.BURY, params


def returning_leases(lease_ids: Sequence[str], suspects: Sequence[str] = ()) -> Step:
    """Give back, uncounted, all that is under leases that no answer told of."""
    params = {
        "lease_ids": [*lease_ids, *suspects], "begun": [], "suspects": list(suspects),
        "refund": 1, "mark": str(uuid.uuid4()), "now": None,
    }  # fmt: skip
    return sql.GIVE_BACK, params


def limiting_waits(milliseconds: int) -> Step:
    """Have waits for locks of the steps that follow fail after so long."""
    return sql.LIMIT_WAITS, {"milliseconds": milliseconds}


def looking_ahead(kind: str, horizon: int) -> Step:
    """Answered by the milliseconds until the next message due within the horizon, if any."""
    return sql.NEXT_DUE, {"kind": kind, "horizon": horizon, "now": None}


def run(using: str, steps: Sequence[Step], channels: Sequence[str] = ()) -> list[list[Row]]:
    """Return each step's rows; either all have taken effect or, when it raises, none.

    Then those who listen on the channels are woken.
    """
    return fetch_all_and_notify(using, steps, channels)
