"""A provider for development: says that it was asked, and sends nothing."""

from __future__ import annotations

import logging

from delayed_queue.notifications.providers.base import Outcome, Verdict
from delayed_queue.notifications.services import Begun
from delayed_queue.observe.logs import quoted

logger = logging.getLogger("delayed_queue.notifications")


class ConsoleProvider:
    """Writes a log line with the id, never the recipient or the text."""

    is_idempotent = True
    repeats_in_doubt = False

    def __init__(self, name: str) -> None:
        self.name = name

    async def send(self, begun: Begun) -> Outcome:
        logger.info("event=sent provider=%s notification=%s", quoted(self.name), begun.id)
        return Outcome(Verdict.ACCEPTED, "printed", str(begun.id))

    def close(self) -> None:
        """Nothing is open."""
