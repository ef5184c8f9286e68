"""The mail server, the two SMS providers and the partners of the demo, and when they fail.

By what they are sent, so that each run has the same faults: an address, a number or a partner is
one that fails, or not, by a checksum of it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from example_project.demo.notifications.fakes import FakeHook, FakeSms, FakeSmtp, Server

LATENCY: Final = 0.02
SLOW_LATENCY: Final = 0.8
# How long the dispatchers wait for an answer, and how long who hangs gives none.
TIMEOUT_SECONDS: Final = 2.0
HANG_SECONDS: Final = 4.0
# Of so many addresses, or numbers, one has this fault.
_MAIL: Final = {"450": 25, "drop": 400, "hang": 600, "drop-after": 250}
_TEXTS: Final = {"503": 20, "429": 40, "drop": 60, "drop-after": 30, "hang-after": 200}
_BLOCKED: Final = {"blocked": 90}
_PARTNERS: Final = {"3": "503", "7": "500", "11": "drop-after", "16": "410"}
# This one never answers anything else.
DOWN_PARTNER: Final = "13"


def fault_of(text: str, shares: dict[str, int]) -> str:
    """Return the fault of a recipient, mostly none."""
    number = zlib.crc32(text.encode())
    for fault, share in shares.items():
        number, rest = divmod(number, share)
        if rest == 0:
            return fault
    return ""


class Unreliable(Server):
    """Hangs for seconds, not for ever."""

    async def hang(self) -> None:
        self.hanging += 1
        await asyncio.wait([asyncio.ensure_future(self._released.wait())], timeout=HANG_SECONDS)


class MailServer(Unreliable, FakeSmtp):
    """Refuses who is nobody, greylists some, and loses its connection before or after a body."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._met: Counter[str] = Counter()

    def at_recipient(self, address: str) -> str:
        if address.startswith("nobody-"):
            return "550"
        self._met[address] += 1
        fault = fault_of(address, _MAIL)
        return fault if self._met[address] == 1 and not fault.endswith("-after") else ""

    def at_data(self, address: str) -> str:
        fault = fault_of(address, _MAIL)
        return fault if fault.endswith("-after") else ""


class Texts(Unreliable, FakeSms):
    """Fails once for some numbers, blocks a few for good."""

    def behaviour(self, fields: dict[str, str], times: int) -> str:
        blocked = fault_of(fields["to"], _BLOCKED)
        return blocked or (fault_of(fields["to"], _TEXTS) if times == 1 else "")


class Partners(Unreliable, FakeHook):
    """Twenty partners: some stumble once, one is gone, one is down."""

    def behaviour(self, path: str, times: int) -> str:
        partner = path.rpartition("/")[2]
        fault = _PARTNERS.get(partner, "503" if partner == DOWN_PARTNER else "")
        return fault if times == 1 or partner == DOWN_PARTNER else ""


@dataclass(frozen=True, slots=True)
class Strangers:
    """All of them, up."""

    mail: MailServer
    first: Texts
    second: Texts
    partners: Partners

    @property
    def texts(self) -> tuple[Texts, Texts]:
        return self.first, self.second

    @property
    def webhooks(self) -> str:
        return f"http://127.0.0.1:{self.partners.port}"

    def slow_down(self) -> None:
        """Have everyone take their time, so that much is in flight."""
        for each in (self.mail, *self.texts):
            each.latency = SLOW_LATENCY

    def recover(self) -> None:
        for each in (self.mail, *self.texts):
            each.latency = LATENCY

    def accepted(self) -> int:
        return sum(len(each.accepted) for each in (self.mail, *self.texts, self.partners))

    def providers(self) -> dict[str, list[dict[str, Any]]]:
        """Return the setting NOTIFICATION_PROVIDERS that leads to them."""
        mail = {
            "kind": "email", "name": "mail", "sender": "Shop <shop@example.org>",
            "host": "127.0.0.1", "port": self.mail.port, "threads": 30, "timeout": TIMEOUT_SECONDS,
        }  # fmt: skip
        texts = [
            {
                "kind": "http", "name": f"sms-{name}", "url": server.url,
                "idempotency_header": "Idempotency-Key", "timeout": TIMEOUT_SECONDS,
                "codes": {"blocked": "permanent"},
            }
            for name, server in zip(("first", "second"), self.texts, strict=True)
        ]  # fmt: skip
        return {"email": [mail], "sms": texts, "webhook": [{"kind": "webhook", "name": "partners"}]}


@contextmanager
def strangers() -> Iterator[Strangers]:
    """Run them until the block ends."""
    with ExitStack() as stack:
        mail = stack.enter_context(MailServer(latency=LATENCY))
        texts = [stack.enter_context(Texts(latency=LATENCY)) for _ in range(2)]
        partners = stack.enter_context(Partners())
        yield Strangers(mail, texts[0], texts[1], partners)
