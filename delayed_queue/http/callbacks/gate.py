"""The gate before the wire: the first byte leaves while its row is locked, or never."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from django.db import Error, connections, transaction

from delayed_queue.db.gathering import LoopGathering
from delayed_queue.db.resilience import drop_if_lost
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.messages import Envelope
from delayed_queue.models import Message

# Seconds that rows are locked. A callback whose first byte has not left by then is not sent.
HOLD_SECONDS: Final = 1.0


class Withdrawn(Exception):
    """The message has lost its lease or is being changed: do not send."""


class Late(OSError):
    """The row's lock has ended, so the first byte must not leave; closes the transport."""


class Hold:
    """A transaction that locks rows until all first bytes have left, or time is up."""

    def __init__(self, leaves: Sequence[Leave]) -> None:
        self._leaves = leaves
        self._lock = threading.Lock()
        self._is_over = False

    def send(self, send: Callable[[], int]) -> int:
        """Run the system call that sends; raises Late if the transaction may have ended."""
        with self._lock:
            if self._is_over:
                raise Late
            return send()

    def wait(self) -> None:
        """Wait until nothing more will be sent; in the thread of the transaction."""
        wait([each.ended for each in self._leaves], HOLD_SECONDS)
        with self._lock:
            self._is_over = True


class Leave:
    """Permission to send the first bytes of one callback, once."""

    def __init__(self, envelope: Envelope) -> None:
        self.place = (envelope.message_id, envelope.lease_id)
        self.answer: asyncio.Future[Hold] = asyncio.get_running_loop().create_future()
        # Set when the bytes have left, or must not be sent any more.
        self.ended: Future[None] = Future()
        self.is_late = False

    def send(self, send: Callable[[], int]) -> int:
        """Send the first bytes, or raise Late; then release the row."""
        try:
            sent = self.answer.result().send(send)
        except Late:
            self.is_late = True
            raise
        self.end()
        return sent

    def end(self) -> None:
        """Release the row; a message that was not sent must not be sent any more."""
        if not self.ended.done():
            self.ended.set_result(None)


# Seconds that the database may take; then the message is deferred.
ASK_SECONDS: Final = 5.0
TIDY_SECONDS: Final = 1.0


class Gate:
    """Locks rows while the first bytes of their callbacks leave; of one event loop.

    The lock is taken where the lease still holds, and deletes and updates wait for it. A message
    deleted before it is not sent; a later delete returns after the first bytes have left. One
    transaction locks many rows, in a thread with a connection of its own, and writes nothing.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._gathering: LoopGathering[None, Leave, None] = LoopGathering(self._keep)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="callback-gate")
        self._tidy_at = 0.0

    def open(self) -> None:
        """Connect in the background, while the first callback waits for other things."""
        self._thread.submit(self._connect)

    async def enter(self, envelope: Envelope) -> Leave:
        """Return leave to send, which must be ended; raises Withdrawn or ResourceUnavailable."""
        leave = Leave(envelope)
        # The gathering's result comes after the transaction; leave is given within it.
        self._gathering.ask(None, leave)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await leave.answer
        except TimeoutError:
            leave.end()
            raise ResourceUnavailable("The database does not answer before a callback.") from None
        except BaseException:
            leave.end()
            raise
        return leave

    async def close(self) -> None:
        """Close the connection, at the end of the event loop; that waits for the database."""
        await self._gathering.close()
        await asyncio.get_running_loop().run_in_executor(self._thread, connections.close_all)
        self._thread.shutdown()

    async def _keep(self, place: None, batch: list[Leave]) -> list[None]:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._hold, loop, batch)
        except Error as error:
            _refuse(batch, error)
        return [None] * len(batch)

    def _hold(self, loop: asyncio.AbstractEventLoop, batch: list[Leave]) -> None:
        """Lock the batch's rows until the first bytes have left; in the thread."""
        self._tidy()
        ids, lease_ids = zip(*(leave.place for leave in batch), strict=True)
        hold = Hold(batch)
        try:
            with transaction.atomic(using=self._using):
                rows = Message.objects.hold(lease_ids, ids, using=self._using)
                held: set[tuple[int, str]] = set(rows)
                loop.call_soon_threadsafe(let_through, batch, held, hold)
                hold.wait()
                # A rollback does not wait for the disk.
                transaction.set_rollback(True, using=self._using)
        except Error:
            connections[self._using].close()  # it is lost, or its server is read-only
            raise

    def _connect(self) -> None:
        connections[self._using].ensure_connection()

    def _tidy(self) -> None:
        drop_if_lost(self._using)
        if time.monotonic() >= self._tidy_at:
            self._tidy_at = time.monotonic() + TIDY_SECONDS
            connections[self._using].close_if_unusable_or_obsolete()


def let_through(batch: list[Leave], held: set[tuple[int, str]], hold: Hold) -> None:
    """Admit the callbacks whose rows are locked; on the loop, so that none can end meanwhile.

    The future of a cancelled task is done before the task ends its leave.
    """
    for leave in batch:
        if leave.answer.done():
            continue
        if leave.place in held:
            leave.answer.set_result(hold)
        else:
            leave.answer.set_exception(Withdrawn())
            leave.end()


def _refuse(batch: list[Leave], error: Error) -> None:
    for leave in batch:
        if not leave.answer.done():
            leave.answer.set_exception(error)
