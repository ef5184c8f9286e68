"""All services of Apprise as a provider."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from apprise import Apprise

from delayed_queue.notifications.providers import Outcome, Verdict, failed, is_late
from delayed_queue.notifications.services import Outgoing


class AppriseProvider:
    """Sends to the Apprise URL, in which ``{recipient}`` is filled in.

    Apprise returns only success or failure, and a failure may be a timeout after the data was sent.
    So every failure is ambiguous.
    """

    is_idempotent = False

    def __init__(self, name: str, *, url: str, threads: int = 10) -> None:
        self.name = name
        self._url = url
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"provider-{name}")

    async def send(self, outgoing: Outgoing) -> Outcome:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.send_now, outgoing)

    def send_now(self, outgoing: Outgoing) -> Outcome:
        """Send; blocks."""
        if is_late(outgoing):
            return Outcome(Verdict.LATE)
        service = Apprise()
        if not service.add(self._url.replace("{recipient}", quote(outgoing.recipient, safe=""))):
            return failed(Verdict.PERMANENT, "no such service")
        if service.notify(body=outgoing.body, title=outgoing.subject):
            return Outcome(Verdict.ACCEPTED, "sent")
        return failed(Verdict.AMBIGUOUS, "not sent")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
