"""What is done for the messages of a process that died."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from django.db import Error, connections, transaction

from delayed_queue.models import Message
from delayed_queue.workers.board import Board, InHand

logger = logging.getLogger("delayed_queue")

# The dead process's last statement may still run and hold its rows; its leases end anyhow.
LOCK_WAIT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Remains:
    """What a dead process held: its leases, and which messages its handlers had in hand.

    Those in hand may have killed it. If one of them was under that suspicion before, it alone
    is to blame; workers handle such messages one at a time for that reason.
    """

    lease_ids: tuple[str, ...]
    in_hand: tuple[InHand, ...]

    @classmethod
    def of(cls, board: Board) -> Remains:
        return cls(tuple(dict.fromkeys(board.held())), tuple(board.in_hand()))

    def leased(self) -> Remains:
        """Return what is under a lease: giving that back twice does no harm."""
        return Remains(self.lease_ids, tuple(e for e in self.in_hand if not e.is_transactional))

    def to_blame(self, *, transactional: bool) -> list[int]:
        suspects = [each for each in self.in_hand if each.is_suspect]
        return [
            each.message_id
            for each in suspects or self.in_hand
            if each.is_transactional is transactional
        ]


def give_back(remains: Remains, using: str) -> None:
    """Have others take at once what the process held; count the attempts it was in the middle of.

    Its leases would run out by themselves, so a failure here delays and loses nothing.
    """
    if not remains.lease_ids and not remains.in_hand:
        return
    try:
        with _impatient(using):
            _give_back(remains, using)
    except Error as error:
        logger.warning("event=give_back_failed error=%s", error)
    finally:
        connections[using].close()


def _give_back(remains: Remains, using: str) -> None:
    leased = remains.to_blame(transactional=False)
    taken = remains.to_blame(transactional=True)
    messages = Message.objects
    if leased:
        messages.expire(remains.lease_ids, leased, using=using)
    if remains.lease_ids:
        messages.release_leases(remains.lease_ids, leased, using=using)
    if taken:
        messages.count_crash(str(uuid.uuid4()), taken, using=using)


@contextmanager
def _impatient(using: str) -> Iterator[None]:
    with transaction.atomic(using=using, durable=True):
        Message.objects.limit_waits(LOCK_WAIT_MS, using=using)
        yield
