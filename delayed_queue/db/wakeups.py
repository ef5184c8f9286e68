"""LISTEN and NOTIFY: sleep until a message may be due, and be woken early."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, LiteralString

import psycopg
from django.db import OperationalError, connections
from psycopg import sql as composed

from delayed_queue.codecs import channel_of as channel_of
from delayed_queue.conf import get_settings
from delayed_queue.db.session import cancel

if TYPE_CHECKING:
    from django.db.backends.postgresql.base import DatabaseWrapper


# Announces leases that someone other than the holder has ended, at least in part.
LEASES_CHANNEL: Final = "delayed_queue_leases"


class WakeChannel:
    """Wakes a thread that sleeps in select(), from any thread or signal handler."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def wake(self) -> None:
        # When it is full or closed, the sleeper was woken or has gone.
        with suppress(OSError):
            self._sender.send(b"\0")

    def clear(self) -> None:
        """Discard earlier wake-ups, so that the next sleep lasts."""
        with suppress(OSError):
            while self._receiver.recv(4096):
                pass

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()

    def __del__(self) -> None:
        self.close()


class StopSignal(WakeChannel):
    """A flag by which another thread or a signal handler ends a blocking ``poll()``.

    It ends a sleep, and cancels the statement that the polling thread waits for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._cancel: Callable[[], Any] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Stop; may be called more than once."""
        self._is_set = True
        self.wake()
        cancel = self._cancel
        if cancel is not None:
            cancel()

    @contextmanager
    def cancelling(self, using: str) -> Iterator[None]:
        """Cancel the alias's running statement if the flag is set in the block."""
        # By the wrapper: a repeated call may bring another connection.
        self._cancel = partial(_cancel, connections[using])
        try:
            yield
        finally:
            self._cancel = None


def _cancel(connection: Any) -> None:
    if connection.connection is not None:
        cancel(connection.connection)


class Listener:
    """Sleeps on the alias's own connection until a NOTIFY, a time-out or a stop signal.

    It only sleeps where notifications cannot arrive: with the setting NOTIFY off, and in a
    transaction. It listens again on a new connection, which counts as a wake-up. With
    ``hears_leases`` it also receives which leases others have ended.
    """

    def __init__(self, kinds: list[str], using: str, *, hears_leases: bool = False) -> None:
        self._kinds = {channel_of(kind): kind for kind in kinds}
        self._leases = [LEASES_CHANNEL] if hears_leases else []
        self._connection: DatabaseWrapper = connections[using]  # type: ignore[assignment]
        self._raw: Any = None
        self._has_heard = False
        # Since the last call; None when notifications may have been missed.
        self._announced: set[str] | None = set()
        self._touched: set[str] | None = set()

    def __enter__(self) -> Listener:
        # If the connection is lost, the caller's first query reconnects, and wait() listens again.
        self._ask(self._listen)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening, so that the connection can go back to a pool."""
        raw, self._raw = self._raw, None
        if raw is not None and raw is self._connection.connection:
            raw.remove_notify_handler(self._hear)
            # The next user of a broken connection gets the error.
            with suppress(psycopg.Error):
                _together(raw, "UNLISTEN {}", [*self._kinds, *self._leases])

    def listen_to(self, kinds: Iterable[str]) -> None:
        """Replace the kinds to listen for."""
        wanted = {channel_of(kind): kind for kind in kinds}
        gone = self._kinds.keys() - wanted.keys()
        new = wanted.keys() - self._kinds.keys()
        self._kinds = wanted
        if self._raw is not None and self._raw is self._connection.connection:
            with self._connection.wrap_database_errors:
                _together(self._raw, "UNLISTEN {}", sorted(gone))
                _together(self._raw, "LISTEN {}", sorted(new))

    def announced(self) -> set[str] | None:
        """Return the kinds announced since the last call; None when any may have been."""
        found, self._announced = self._announced, set()
        return None if found is None else {self._kinds[each] for each in found & self._kinds.keys()}

    def touched_leases(self) -> set[str] | None:
        """Return the leases touched since the last call; None when any may have been."""
        found, self._touched = self._touched, set()
        return found

    def wait(self, seconds: float, *wake_channels: WakeChannel | None) -> bool:
        """Sleep for ``seconds`` or until woken; True if something may have been offered."""
        rung = [each.fileno() for each in wake_channels if each is not None]
        if not self._can_listen():
            select.select(rung, [], [], max(seconds, 0))
            return False
        return self._ask(lambda: self._listen() or self._wait(seconds, rung))

    def heard(self) -> bool:
        """True if a notification arrived with replies since the last call."""
        raw = self._raw
        if raw is not None and not raw.closed:
            # One after the last reply is in libpq's memory, where select() does not see it.
            self._read(raw)
        has_heard, self._has_heard = self._has_heard, False
        return has_heard

    def _read(self, raw: Any) -> None:
        while (notification := raw.pgconn.notifies()) is not None:
            self._note(notification.relname.decode(), notification.extra.decode())

    def _hear(self, notification: psycopg.Notify) -> None:
        self._note(notification.channel, notification.payload)

    def _note(self, channel: str, payload: str) -> None:
        if channel == LEASES_CHANNEL and self._touched is not None:
            self._touched.add(payload)
        elif channel != LEASES_CHANNEL and self._announced is not None:
            self._announced.add(channel)
        self._has_heard = True

    def _miss(self) -> None:
        self._announced = self._touched = None

    def _ask(self, question: Callable[[], bool]) -> bool:
        try:
            with self._connection.wrap_database_errors:
                return question()
        except OperationalError:
            # Lost: the next poll reconnects with the queue's backoff, and the next call listens.
            self.stop()
            self._connection.close()
            self._miss()
            return True

    def _can_listen(self) -> bool:
        return get_settings().NOTIFY and not self._connection.in_atomic_block

    def _listen(self) -> bool:
        """Listen on the present connection; True if it did not before."""
        if not self._can_listen():
            return False
        self._connection.ensure_connection()
        if self._raw is self._connection.connection:
            return False
        raw = self._connection.connection
        # First the handler: a notification may arrive with the reply to LISTEN.
        raw.add_notify_handler(self._hear)
        with self._connection.wrap_database_errors:
            _together(raw, "LISTEN {}", [*self._kinds, *self._leases])
        self._raw = raw
        self._miss()
        return True

    def _wait(self, seconds: float, rung: list[int]) -> bool:
        if self.heard():
            return True
        socket_number = self._raw.fileno()
        readable, _, _ = select.select([socket_number, *rung], [], [], max(seconds, 0))
        if socket_number in readable:
            self._receive()
        return self.heard()

    def _receive(self) -> None:
        """Read all that has arrived; psycopg's generator costs as much as a small statement."""
        self._raw.pgconn.consume_input()
        self._read(self._raw)


def _together(raw: Any, statement: LiteralString, channels: Iterable[str]) -> None:
    """Run the statement for each channel, in one round trip."""
    said = [composed.SQL(statement).format(composed.Identifier(each)) for each in channels]
    if said:
        psycopg.Cursor(raw).execute(composed.SQL("; ").join(said))
