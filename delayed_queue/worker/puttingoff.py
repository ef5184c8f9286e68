"""Putting off: what is done about handled messages that another transaction holds."""

from __future__ import annotations

import logging
import math
import time
from typing import Final

from delayed_queue.models import Message
from delayed_queue.worker.claims import Claim
from delayed_queue.worker.leasekeeper import LeaseKeeper

logger = logging.getLogger("delayed_queue")

# How long an exchange waits for another transaction's lock. Shorter than PostgreSQL waits before
# it looks for a deadlock (1 s), so that a worker gives way before somebody else is made to.
LOCK_WAIT_MS: Final = 250
# How long a message that somebody held is not asked for.
PAUSE_SECONDS: Final = 1.0
_LOCK_NOT_AVAILABLE: Final = "55P03"


class PuttingOff:
    """Sets messages apart that somebody holds, so that all others go on without waiting.

    Whoever updates or drops a message that is being handled locks it until their commit; with
    everything of a worker in one transaction, all of it would wait for one long transaction.
    """

    def __init__(self, using: str, keeper: LeaseKeeper) -> None:
        self._using = using
        self._keeper = keeper

    def begin(self) -> int:
        """Set apart what is held now; return 0, the number of messages this has claimed."""
        claims = self._keeper.claims()
        held = self._held(claims)
        logger.info("event=messages_held count=%s", len(held))
        for claim in claims:
            for apart in claim.set_apart(held):
                apart.put_off_until = time.monotonic() + PAUSE_SECONDS
                self._keeper.watch(apart)
            if claim.is_settled:
                self._keeper.forget(claim)
        return 0

    def try_again(self) -> None:
        """Ask of what was put off long enough whether it is still held."""
        now = time.monotonic()
        claims = [claim for claim in self._keeper.claims() if 0 < claim.put_off_until <= now]
        held = self._held(claims) if claims else set()
        for claim in claims:
            is_held = not held.isdisjoint(claim.unwritten_ids())
            claim.put_off_until = now + PAUSE_SECONDS if is_held else 0.0

    def nap(self) -> float:
        """Return the seconds until something is to be tried again."""
        times = [claim.put_off_until for claim in self._keeper.claims() if claim.put_off_until]
        return min(times) - time.monotonic() if times else math.inf

    def _held(self, claims: list[Claim]) -> set[int]:
        ids = [message_id for claim in claims for message_id in claim.unwritten_ids()]
        return set(Message.objects.held(ids, using=self._using))


def waited_too_long(error: Exception) -> bool:
    """Return whether the wait for another transaction's lock was given up."""
    return getattr(error.__cause__, "sqlstate", None) == _LOCK_NOT_AVAILABLE
