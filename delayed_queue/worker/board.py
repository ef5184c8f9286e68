"""The crash board: memory a worker process shares with its supervisor, written without a lock.

The process writes the time of its last loop iteration, the leases it holds, and the messages its
handlers have in flight. After its death the supervisor releases these. The supervisor writes for
how long a suspect runs alone.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from delayed_queue.conf import get_settings
from delayed_queue.logs import log
from delayed_queue.worker.deadlines import EXIT_STUCK

COUNTERS: Final = ("done", "failed", "snoozed", "dead", "lost", "expired", "in_flight")
MAX_LEASES: Final = 512
LEASE_BYTES: Final = 36

# The layout, in words of eight bytes: the time of the last iteration, the counters, the number of
# leases, the number of leases of suspects, the milliseconds for which a suspect runs alone, the
# holder's id, the number of strays, whether it is drained, whether it is used up; two words for
# each slot; the leases as text, those of suspects first.
_TURNED_AT: Final = 0
_FIRST_COUNTER: Final = 1
_LEASES: Final = _FIRST_COUNTER + len(COUNTERS)
_SUSPECT_LEASES: Final = _LEASES + 1
_ALONE: Final = _SUSPECT_LEASES + 1
_HOLDER: Final = _ALONE + 1
_STRAYS: Final = _HOLDER + 1
_DRAINED: Final = _STRAYS + 1
_USED_UP: Final = _DRAINED + 1
_FIRST_SLOT: Final = _USED_UP + 1
_WORD: Final = 8

_SUSPECT: Final = 1
_TRANSACTIONAL: Final = 2

# Minimum limit for a start, in seconds, for an overloaded machine.
START_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class InFlight:
    """A message that a handler has started and not ended."""

    message_id: int
    is_suspect: bool
    is_transactional: bool
    # The first message of a batch, all of which are in flight.
    is_batch: bool = False


class Board:
    """The memory of a process: N ``slots`` for messages in flight, leases and counters.

    Every word has one writing thread. The other process reads it after the writer died, or where a
    stale value does no harm.
    """

    def __init__(self, memory: mmap.mmap, slots: int) -> None:
        self._memory = memory
        self.slots = slots
        self._words = memoryview(memory).cast("q")
        self._leases_at = (_FIRST_SLOT + 2 * slots) * _WORD

    @classmethod
    def new(cls, slots: int) -> Board:
        """Return an empty board, which processes forked later share."""
        return cls(mmap.mmap(-1, size_of(slots)), slots)

    # Written by the worker

    def turn(self) -> None:
        """Record an iteration of the claim loop, by the clock that all processes share."""
        self._words[_TURNED_AT] = time.monotonic_ns()

    def count(self, numbers: Iterable[int]) -> None:
        for place, number in enumerate(numbers, _FIRST_COUNTER):
            self._words[place] = number

    def hold(self, lease_ids: Sequence[str], suspects: Sequence[str] = ()) -> None:
        """Record the leases held; call it before the claim, not after."""
        held = [*suspects, *lease_ids][:MAX_LEASES]
        text = "".join(held).encode("ascii")
        self._words[_LEASES] = 0
        self._memory[self._leases_at : self._leases_at + len(text)] = text
        self._words[_SUSPECT_LEASES] = min(len(suspects), len(held))
        self._words[_LEASES] = len(held)

    def take(self, slot: int, message_id: int) -> None:
        """Record the message in flight, 0 for none; a negative id is the first one of a batch."""
        self._words[_FIRST_SLOT + 2 * slot] = message_id

    def mark(self, slot: int, *, is_suspect: bool, is_transactional: bool = False) -> None:
        """Record what kind of messages the slot takes from now on."""
        flags = _SUSPECT * is_suspect + _TRANSACTIONAL * is_transactional
        self._words[_FIRST_SLOT + 2 * slot + 1] = flags

    def set_holder(self, holder: str) -> None:
        """Record the eight hexadecimal digits with which the lease ids of the process begin."""
        self._words[_HOLDER] = int(holder, 16)

    def set_strays(self, number: int) -> None:
        """Record the number of abandoned threads, whose handlers exceeded their timeout."""
        self._words[_STRAYS] = number

    def drain(self, *, is_drained: bool) -> None:
        """Claim nothing while True; also holds for the process that replaces this one."""
        self._words[_DRAINED] = is_drained

    @property
    def is_drained(self) -> bool:
        return bool(self._words[_DRAINED])

    def use_up(self) -> None:
        """Ask the supervisor for another process in place of this one."""
        self._words[_USED_UP] = True

    @property
    def alone_seconds(self) -> float:
        """Seconds for which a suspect waits to be alone, and is alone; 0 means not at all."""
        return self._words[_ALONE] / 1000

    # Written by the supervisor

    def isolate(self, seconds: float) -> None:
        self._words[_ALONE] = int(seconds * 1000)

    # Read by the supervisor

    @property
    def turned_at(self) -> float:
        """The last iteration of the loop, in monotonic seconds; 0 before the first."""
        return self._words[_TURNED_AT] / 1e9

    @property
    def is_used_up(self) -> bool:
        return bool(self._words[_USED_UP])

    def counters(self) -> dict[str, int]:
        return {name: self._words[_FIRST_COUNTER + n] for n, name in enumerate(COUNTERS)}

    def held(self) -> list[str]:
        text = self._memory[self._leases_at : self._leases_at + self._words[_LEASES] * LEASE_BYTES]
        return [
            text[at : at + LEASE_BYTES].decode("ascii") for at in range(0, len(text), LEASE_BYTES)
        ]

    def held_suspects(self) -> list[str]:
        """Return the held leases of suspects."""
        return self.held()[: self._words[_SUSPECT_LEASES]]

    @property
    def holder(self) -> str:
        """The id from ``set_holder``; empty before."""
        holder = self._words[_HOLDER]
        return f"{holder:08x}" if holder else ""

    @property
    def strays(self) -> int:
        return self._words[_STRAYS]

    def in_flight(self) -> list[InFlight]:
        found = []
        for place in range(_FIRST_SLOT, _FIRST_SLOT + 2 * self.slots, 2):
            message_id, flags = self._words[place], self._words[place + 1]
            if message_id:
                is_suspect, in_transaction = bool(flags & _SUSPECT), bool(flags & _TRANSACTIONAL)
                found.append(InFlight(abs(message_id), is_suspect, in_transaction, message_id < 0))
        return found

    def wipe(self) -> None:
        """Forget what a dead process held, but not its counters and the isolation."""
        for word in (_TURNED_AT, _LEASES, _SUSPECT_LEASES, _HOLDER, _STRAYS, _USED_UP):
            self._words[word] = 0
        for place in range(_FIRST_SLOT, _FIRST_SLOT + 2 * self.slots):
            self._words[place] = 0


def size_of(slots: int) -> int:
    return (_FIRST_SLOT + 2 * slots) * _WORD + MAX_LEASES * LEASE_BYTES


def limit_of(board: Board) -> float:
    """Return the maximum age of a loop's last iteration, in seconds: longer before the first."""
    limit = get_settings().WATCHDOG.total_seconds()
    return limit if board.turned_at else max(limit, START_SECONDS)


class Watchdog:
    """Detects a claim loop that is stuck.

    After a pause of the container or machine, its processes continue in any order: then the loop
    has its time anew. Call it at least every quarter of that time.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._checked_at, self._awake_since = time.monotonic(), 0.0

    def stuck_seconds(self, started_at: float) -> float | None:
        """Return for how long the loop has been stuck, None if it is not."""
        now = time.monotonic()
        if now - self._checked_at > get_settings().WATCHDOG.total_seconds() / 4:
            self._awake_since = now
        self._checked_at = now
        seconds = now - max(self._board.turned_at, started_at, self._awake_since)
        return seconds if seconds > limit_of(self._board) else None

    def exit_when_stuck(self) -> None:
        """Start a thread that ends this process when its loop is stuck.

        The process manager restarts it. The leases expire, so other workers take the messages.
        """
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        started_at = time.monotonic()
        pause = threading.Event()
        while not pause.wait(get_settings().WATCHDOG.total_seconds() / 10):
            if (seconds := self.stuck_seconds(started_at)) is not None:
                log(logging.CRITICAL, "loop_stands", seconds=f"{seconds:.0f}")
                os._exit(EXIT_STUCK)
