"""What is done for the messages of a process that died."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from django.db import Error, connections, transaction

from delayed_queue.models import Message
from delayed_queue.observe.logs import described
from delayed_queue.worker.board import Board, InHand

logger = logging.getLogger("delayed_queue")

# The dead process's last statement may still run and hold its rows; its leases end anyhow.
LOCK_WAIT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Remains:
    """What a dead process held: its leases, and which messages its handlers had in hand.

    Those in hand may have killed it, and are suspects from now on. Only one that was alone is
    known to have done it.
    """

    lease_ids: tuple[str, ...]
    in_hand: tuple[InHand, ...]
    suspect_leases: tuple[str, ...] = ()
    is_known: bool = False

    @classmethod
    def of(cls, board: Board) -> Remains:
        in_hand = tuple(board.in_hand())
        return cls(
            tuple(dict.fromkeys(board.held())),
            in_hand,
            tuple(board.held_suspects()),
            is_known=len(in_hand) == 1,
        )

    def leased(self) -> Remains:
        """Return what is under a lease: giving that back twice does no harm."""
        leased = tuple(each for each in self.in_hand if not each.is_transactional)
        return replace(self, in_hand=leased)

    def begun(self, *, transactional: bool) -> list[int]:
        return [each.message_id for each in self.in_hand if each.is_transactional is transactional]


def give_back(remains: Remains, using: str) -> None:
    """Have others take at once what the process held; count the attempt that it died of.

    Its leases would run out by themselves, so a failure here delays and loses nothing.
    """
    if not remains.lease_ids and not remains.in_hand:
        return
    try:
        with _impatient(using):
            _give_back(remains, using)
    except Error as error:
        logger.warning("event=give_back_failed error=%s", described(error))
    finally:
        connections[using].close()


def _give_back(remains: Remains, using: str) -> None:
    messages, mark = Message.objects, str(uuid.uuid4())
    if remains.lease_ids:
        messages.give_back(
            remains.lease_ids,
            begun=remains.begun(transactional=False),
            suspects=remains.suspect_leases,
            counts=remains.is_known,
            mark=mark,
            using=using,
        )
    if taken := remains.begun(transactional=True):
        messages.count_crash(mark, taken, counts=remains.is_known, using=using)


@contextmanager
def _impatient(using: str) -> Iterator[None]:
    with transaction.atomic(using=using, durable=True):
        Message.objects.limit_waits(LOCK_WAIT_MS, using=using)
        yield
