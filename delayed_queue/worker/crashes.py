"""Give back what a dead process held: its leases, and the attempts it died of."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from django.db import Error, connections, transaction

from delayed_queue.models import Message
from delayed_queue.observe.logs import described, log
from delayed_queue.worker.board import Board, InFlight

# The dead process's last statement may still run and hold its rows; its leases end anyhow.
LOCK_WAIT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The leases of a dead process, and the messages that its handlers had in flight.

    Those in flight may have killed it, and are suspects from now on. Only one that was alone is
    known to have done it.
    """

    lease_ids: tuple[str, ...]
    in_flight: tuple[InFlight, ...]
    suspect_leases: tuple[str, ...] = ()
    is_known: bool = False

    @classmethod
    def of(cls, board: Board) -> CrashReport:
        in_flight = tuple(board.in_flight())
        return cls(
            tuple(dict.fromkeys(board.held())),
            in_flight,
            tuple(board.held_suspects()),
            is_known=len(in_flight) == 1,
        )

    def leased(self) -> CrashReport:
        """Return what is under a lease: giving that back twice does no harm."""
        leased = tuple(each for each in self.in_flight if not each.is_transactional)
        return replace(self, in_flight=leased)

    def begun(self, *, transactional: bool) -> list[int]:
        return [
            each.message_id for each in self.in_flight if each.is_transactional is transactional
        ]


def give_back(report: CrashReport, using: str) -> None:
    """Have others take at once what the process held; count the attempt that it died of.

    Its leases would run out by themselves, so a failure here delays and loses nothing.
    """
    if not report.lease_ids and not report.in_flight:
        return
    try:
        with _limited_waits(using):
            _give_back(report, using)
    except Error as error:
        log(logging.WARNING, "give_back_failed", error=described(error))
    finally:
        connections[using].close()


def _give_back(report: CrashReport, using: str) -> None:
    messages, mark = Message.objects, str(uuid.uuid4())
    if report.lease_ids:
        messages.give_back(
            report.lease_ids,
            begun=report.begun(transactional=False),
            suspects=report.suspect_leases,
            counts=report.is_known,
            mark=mark,
            using=using,
        )
    if taken := report.begun(transactional=True):
        messages.count_crash(mark, taken, counts=report.is_known, using=using)


@contextmanager
def _limited_waits(using: str) -> Iterator[None]:
    with transaction.atomic(using=using, durable=True):
        Message.objects.limit_waits(LOCK_WAIT_MS, using=using)
        yield
