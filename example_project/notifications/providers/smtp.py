"""An SMTP backend of Django's that knows whether the server may have got the message."""

from __future__ import annotations

import smtplib
from typing import Any

from django.core.mail.backends.smtp import EmailBackend


class Tracked(smtplib.SMTP):
    """Notes when the body of a message goes out: from then on no answer may mean "accepted"."""

    has_sent_body = False

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
        if self.connection is not None:
            smtplib.SMTP.close(self.connection)
            self.connection = None
