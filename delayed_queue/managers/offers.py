"""What is offered, and what of it is found stored."""

from __future__ import annotations

from typing import NamedTuple


class Offered(NamedTuple):
    """A message as it is offered; either the schedule or the delay counts, in milliseconds."""

    key: str
    kind: str
    payload: bytes
    schedule_at: int | None
    delay: int
    headers: str | None


class FoundOffer(NamedTuple):
    """What is stored under the key of an offer: whether just that; None where nothing is."""

    key: str
    is_same: bool
    scheduled_at_initially: int | None
    created_at: int | None
    now: int
