"""Recovery of what a dead worker process held, and the reports of its death."""

from __future__ import annotations

import logging
import signal
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from django.db import Error, connections, transaction

from delayed_queue.logs import described, log
from delayed_queue.observe.overview import name_of
from delayed_queue.observe.workers import Worker
from delayed_queue.queue.models import Message
from delayed_queue.worker.board import Board, InFlight

# The last statement of the dead process may still run and hold its rows; its leases end anyhow.
LOCK_WAIT_MS: Final = 5_000
# At most N messages in flight are named in a log line or an error; the others are counted.
MOST_NAMED: Final = 10


class MessageName(NamedTuple):
    """The queue and the key of a message."""

    queue: str
    key: str

    def __str__(self) -> str:
        return f"{self.queue}/{self.key}"


@dataclass(frozen=True, slots=True)
class CrashReport:
    """A dead process: how it ended, its leases, and the messages its handlers had in flight.

    Any of those may have killed it, so all become suspects. ``is_known``: only one handler ran, so
    its message is charged an attempt. ``holder``: the start of its lease ids, and in its row.
    """

    lease_ids: tuple[str, ...]
    in_flight: tuple[InFlight, ...]
    suspect_leases: tuple[str, ...] = ()
    is_known: bool = False
    holder: str = ""
    cause: str = ""

    @classmethod
    def of(cls, board: Board, cause: str = "") -> CrashReport:
        in_flight = tuple(board.in_flight())
        return cls(
            tuple(dict.fromkeys(board.held())),
            in_flight,
            tuple(board.held_suspects()),
            is_known=len(in_flight) == 1 and not in_flight[0].is_batch and not board.strays,
            holder=board.holder,
            cause=cause,
        )

    def leased(self) -> CrashReport:
        """Return what is under a lease: giving that back twice does no harm."""
        leased = tuple(each for each in self.in_flight if not each.is_transactional)
        return replace(self, in_flight=leased)

    def begun(self, *, transactional: bool) -> list[int]:
        return [
            each.message_id for each in self.in_flight if each.is_transactional is transactional
        ]


class GivenBack(NamedTuple):
    """The messages in flight that were found, and whether everything was written."""

    names: list[MessageName]
    is_complete: bool


def cause_of_death(code: int, worker: str, process: int, pid: int) -> str:
    """Describe how a process ended, and which one it was."""
    how = f"exit code {code}"
    if code < 0:
        how = f"signal {-code}"
        with suppress(ValueError):
            how = f"signal {-code} ({signal.Signals(-code).name})"
    return f"{how}, worker {worker}, process {process} (pid {pid}) on {socket.gethostname()}"


def give_back(report: CrashReport, using: str) -> GivenBack:
    """Release what the process held, count the attempt it died of, and remove its row.

    Its leases would run out by themselves, so a failure here delays and loses nothing.
    """
    names: dict[int, MessageName] = {}
    try:
        with _limited_waits(using):
            names = _names_of(report, using)
            _give_back(report, _error_text(report, names), using)
    except Error as error:
        log(logging.WARNING, "give_back_failed", error=described(error))
        return GivenBack(list(names.values()), is_complete=False)
    finally:
        connections[using].close()
    return GivenBack(list(names.values()), is_complete=True)


def _give_back(report: CrashReport, error: str, using: str) -> None:
    messages, mark = Message.objects, str(uuid.uuid4())
    if report.holder:
        Worker.objects.using(using).filter(holder=report.holder).delete()
    if report.lease_ids:
        messages.give_back(
            report.lease_ids,
            begun=report.begun(transactional=False),
            suspects=report.suspect_leases,
            counts=report.is_known,
            mark=mark,
            error=error,
            using=using,
        )
    if taken := report.begun(transactional=True):
        messages.count_crash(
            mark,
            taken,
            counts=report.is_known,
            stays=any(each.is_batch for each in report.in_flight),
            error=error,
            using=using,
        )


def _names_of(report: CrashReport, using: str) -> dict[int, MessageName]:
    ids = [each.message_id for each in report.in_flight]
    rows = Message.objects.using(using).filter(id__in=ids) if ids else Message.objects.none()
    return {
        id_: MessageName(name_of(kind).queue, key)
        for id_, kind, key in rows.values_list("id", "kind", "key")
    }


def _error_text(report: CrashReport, names: Mapping[int, MessageName]) -> str:
    if report.is_known:
        return f"{report.cause}; nothing else was in flight"
    return f"{report.cause}; in flight: {listed(list(names.values()))}"


def listed(names: list[MessageName]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - MOST_NAMED
    shown = ", ".join(map(str, names[:MOST_NAMED]))
    return f"{shown} and {more} more" if more > 0 else shown


@contextmanager
def _limited_waits(using: str) -> Iterator[None]:
    with transaction.atomic(using=using, durable=True):
        Message.objects.limit_waits(LOCK_WAIT_MS, using=using)
        yield
