"""An SMTP backend of Django's that knows whether the server may have got the message."""

from __future__ import annotations

import io
import smtplib
import socket
import time
from typing import Any

from django.core.mail.backends.smtp import EmailBackend


class _Timely(io.RawIOBase):
    """Reads from a socket until a deadline, however little comes at a time."""

    def __init__(self, sock: socket.socket, ends_at: float) -> None:
        self._sock = sock
        self.ends_at = ends_at

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer was not complete in time")
        self._sock.settimeout(left)
        return self._sock.recv_into(buffer)


class Tracked(smtplib.SMTP):
    """Notes when the body of a message goes out: from then on no answer may mean "accepted".

    An answer must be complete within the timeout: one that drips would hold its thread for ever.
    """

    has_sent_body = False
    _reader: _Timely

    def getreply(self) -> tuple[int, bytes]:
        sock, seconds = self.sock, self.sock.gettimeout() if self.sock else None
        if sock is None or seconds is None:
            return super().getreply()
        ends_at = time.monotonic() + seconds
        if self.file is None:
            self._reader = _Timely(sock, ends_at)
            self.file = io.BufferedReader(self._reader)
        self._reader.ends_at = ends_at
        try:
            return super().getreply()
        finally:
            if self.sock is not None:
                self.sock.settimeout(seconds)

    def mail(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        self.has_sent_body = False
        return super().mail(*args, **kwargs)

    def send(self, s: Any) -> None:
        # smtplib sends commands as text and bodies as bytes.
        self.has_sent_body = self.has_sent_body or isinstance(s, bytes)
        super().send(s)


class TrackedSSL(Tracked, smtplib.SMTP_SSL):
    """The same over TLS from the start."""


class TrackedBackend(EmailBackend):
    """Django's SMTP backend over a tracked connection."""

    @property
    def connection_class(self) -> type[smtplib.SMTP]:
        return TrackedSSL if self.use_ssl else Tracked

    @property
    def may_have_sent(self) -> bool:
        return bool(getattr(self.connection, "has_sent_body", False))

    def is_alive(self) -> bool:
        """Return whether the server answers on the connection that is open."""
        try:
            return self.connection is not None and self.connection.noop()[0] == 250
        except (smtplib.SMTPException, OSError):
            return False

    def abandon(self) -> None:
        """Drop the connection without a word, which could block or fail."""
        # Django keeps one that it could not set up, to take its leave of it at the next try.
        for name in ("connection", "_partial_connection"):
            connection: smtplib.SMTP | None = getattr(self, name, None)
            if connection is not None:
                smtplib.SMTP.close(connection)
                setattr(self, name, None)
