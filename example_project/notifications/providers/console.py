"""A provider for development: says that it was asked, and sends nothing."""

from __future__ import annotations

import logging

from delayed_queue.logs import quoted
from example_project.notifications.providers.base import Outcome, Verdict
from example_project.notifications.services import Begun

logger = logging.getLogger("example_project.notifications")


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
