"""Providers send a notification through a third party: their base, and their outcomes."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Protocol

from delayed_queue.logs import log
from delayed_queue.notifications.services import Outgoing

MAX_DETAIL: Final = 500
_LONG_NUMBER: Final = re.compile(r"\+?\d[\d ()-]{5,}\d")
_ADDRESS: Final = re.compile(r"[^\s<>@]+@[^\s<>@]+")
_CODE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,50}")


class Verdict(StrEnum):
    """The end of a call.

    ACCEPTED: the provider has it. TRANSIENT: it does not, but a retry or another provider may
    succeed. PERMANENT: no retry can succeed. AMBIGUOUS: it may have it. LATE: not sent, because it
    has expired. POSTPONED: not sent, because there is no capacity now; not an attempt. BUSY: the
    same, and the provider reported it: it gets fewer calls at a time.
    """

    ACCEPTED = "accepted"
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    AMBIGUOUS = "ambiguous"
    LATE = "late"
    POSTPONED = "postponed"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one call.

    ``code`` is the provider's own, or names the error. ``retry_after`` is the wait it requested.
    ``blames_provider``: the failure concerns the provider, not this message.
    """

    verdict: Verdict
    code: str = ""
    provider_id: str = ""
    retry_after: timedelta | None = None
    detail: str = field(default="", repr=False)
    blames_provider: bool = False


class Provider(Protocol):
    """One account with a third party, for one channel.

    ``is_idempotent``: it sends once per key. Only then is a message in doubt sent again.
    """

    name: str
    is_idempotent: bool

    async def send(self, outgoing: Outgoing) -> Outcome:
        """Send; raises no failure of the third party."""

    def close(self) -> None:
        """Close connections and threads, when no loop uses it any more."""


def is_late(outgoing: Outgoing, delay: timedelta = timedelta(0)) -> bool:
    """Return whether it will have expired after the delay."""
    if outgoing.deadline is None:
        return False
    return outgoing.deadline <= time.monotonic() + delay.total_seconds()


def failed(verdict: Verdict, error: BaseException | str, **more: Any) -> Outcome:
    """Return the outcome of an error without an answer: its name, without its text."""
    code = error if isinstance(error, str) else type(error).__name__
    return Outcome(verdict, code, blames_provider=verdict is not Verdict.PERMANENT, **more)


def shown_code(text: str) -> str:
    """Return a provider's code, which is logged and listed; empty for any other text."""
    return text if _CODE.fullmatch(text) and cleaned(text) == text else ""


def cleaned(text: str) -> str:
    """Return the start of an answer, without addresses and numbers."""
    return _LONG_NUMBER.sub("(number)", _ADDRESS.sub("(address)", text))[:MAX_DETAIL]


class ThreadedProvider:
    """A provider whose ``send_now`` blocks, in a pool of threads."""

    is_idempotent = False

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"provider-{name}")

    async def send(self, outgoing: Outgoing) -> Outcome:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._send, outgoing)

    def _send(self, outgoing: Outgoing) -> Outcome:
        # Checked here, because it may have waited for a thread.
        return Outcome(Verdict.LATE) if is_late(outgoing) else self.send_now(outgoing)

    def send_now(self, outgoing: Outgoing) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class LoopProvider:
    """A provider whose connections, if any, belong to the event loop and end with it."""

    def close(self) -> None:
        """Nothing of its own is open."""


class ConsoleProvider(LoopProvider):
    """Writes a log line with the id, without recipient and text."""

    is_idempotent = True

    def __init__(self, name: str) -> None:
        self.name = name

    async def send(self, outgoing: Outgoing) -> Outcome:
        log(logging.INFO, "sent", provider=self.name, notification=outgoing.id)
        return Outcome(Verdict.ACCEPTED, "printed", str(outgoing.id))
