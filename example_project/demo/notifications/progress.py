"""The live view of the act."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from example_project.demo.console import Console
from example_project.demo.notifications.strangers import Strangers
from example_project.demo.processes import Child
from example_project.notifications.models import Status

BAR_WIDTH: Final = 44


@dataclass(frozen=True, slots=True)
class Moment:
    """How far the act is: seconds, and the share of the requests that have come."""

    seconds: float
    share: float
    accepted: int
    refused: int
    statuses: Counter[str]


class Progress:
    """Draws a block, or where that cannot be a line now and then."""

    def __init__(self, console: Console, strangers: Strangers) -> None:
        self._console = console
        self._strangers = strangers

    def show(self, moment: Moment, dispatchers: Sequence[Child]) -> None:
        states = "  ".join(map(self._state, dispatchers))
        rows = [*self._rows(moment), self._row("dispatchers", states)]
        self._console.draw(["", self._bar(moment), "", *rows, ""], self._plain(moment))

    def _bar(self, moment: Moment) -> str:
        done = round(min(moment.share, 1.0) * BAR_WIDTH)
        bar = self._console.good("━" * done) + self._console.dim("─" * (BAR_WIDTH - done))
        note = "requests come in" if moment.share < 1 else "all asked for, what is left is sent"
        return f"  {moment.seconds:3.0f} s  {bar}  {self._console.dim(note)}"

    def _rows(self, moment: Moment) -> list[str]:
        count, refused = moment.statuses, moment.refused
        ended = count[Status.EXPIRED] + count[Status.CANCELLED] + count[Status.FAILED]
        return [
            self._row("accepted", f"{moment.accepted:>7,}", f"{refused:,} refused with reasons"),
            self._row("waiting", f"{count[Status.ENQUEUED]:>7,}", "for their time, or their turn"),
            self._row("in hand", f"{count[Status.PROCESSING]:>7,}", "being sent"),
            self._row(
                "sent", f"{count[Status.SUCCESSFULLY_PROCESSED]:>7,}", f"{self._received()} arrived"
            ),
            self._row(
                "unsent", f"{ended:>7,}",
                f"{count[Status.FAILED]:,} failed, {count[Status.EXPIRED]:,} expired, "
                f"{count[Status.CANCELLED]:,} cancelled or suppressed",
            ),
            self._row("providers", self._providers()),
        ]  # fmt: skip

    def _received(self) -> str:
        found = self._strangers
        texts = sum(len(each.accepted) for each in found.texts)
        return (
            f"{len(found.mail.accepted):,} mails, {texts:,} texts, "
            f"{len(found.partners.accepted):,} webhooks"
        )

    def _providers(self) -> str:
        states = (
            f"{name} {self._console.bad('down') if server.is_down else self._console.good('up')}"
            for name, server in zip(("sms-first", "sms-second"), self._strangers.texts, strict=True)
        )
        return "  ".join(states)

    def _row(self, name: str, value: str, note: str = "") -> str:
        return f"  {name:<11} {value}  {self._console.dim(note)}".rstrip()

    def _state(self, child: Child) -> str:
        if child.is_running:
            return f"{child.pid} {self._console.good('runs')}"
        return f"{child.pid} {self._console.bad('killed')}"

    def _plain(self, moment: Moment) -> str:
        count = moment.statuses
        return (
            f"{moment.seconds:3.0f} s: {moment.accepted:,} accepted, {moment.refused:,} refused; "
            f"{count[Status.ENQUEUED]:,} waiting, {count[Status.PROCESSING]:,} in hand, "
            f"{count[Status.SUCCESSFULLY_PROCESSED]:,} sent, {count[Status.FAILED]:,} failed, "
            f"{count[Status.EXPIRED]:,} expired, {count[Status.CANCELLED]:,} cancelled; "
            f"arrived: {self._received()}"
        )
