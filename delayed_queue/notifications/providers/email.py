"""Email through Django's backends: one message per call, over kept connections."""

from __future__ import annotations

import smtplib
import socket
import time
from dataclasses import dataclass, replace
from email import policy
from email.errors import ObsoleteHeaderDefect
from email.utils import formataddr, parseaddr
from typing import Any, Final

import django
from django.core.mail import EmailMultiAlternatives
from django.core.mail.backends.smtp import EmailBackend
from django.utils.module_loading import import_string

from delayed_queue.notifications.providers import (
    Outcome,
    ThreadedProvider,
    Verdict,
    cleaned,
    failed,
)
from delayed_queue.notifications.recipients import normal_address
from delayed_queue.notifications.services import Outgoing
from delayed_queue.notifications.unsubscribing import headers_of


class Tracked(smtplib.SMTP):
    """Records when the body of a message was sent: then a lost answer may mean "accepted"."""

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
        """Return whether the server answers on the open connection."""
        try:
            return self.connection is not None and self.connection.noop()[0] == 250
        except (smtplib.SMTPException, OSError):
            return False

    def abandon(self) -> None:
        """Close the connection without QUIT, which could block or fail."""
        # Django keeps a connection that it could not set up, and would send QUIT later.
        for name in ("connection", "_partial_connection"):
            connection: smtplib.SMTP | None = getattr(self, name, None)
            if connection is not None:
                smtplib.SMTP.close(connection)
                setattr(self, name, None)


TRACKED: Final = "delayed_queue.notifications.providers.email.TrackedBackend"
# From 6.1 on, Django warns about a backend without an alias.
_NAMED: Final = {"alias": "notifications", "host": "localhost"} if django.VERSION >= (6, 1) else {}
# A connection that was idle for N seconds is checked before its next use.
IDLE_SECONDS: Final = 5.0
# Refusals that concern our account, not the message.
_ACCOUNT: Final = frozenset({421, 454, 530, 534, 535, 538})
_TOO_LARGE: Final = 552
# Characters of a line of a mail (RFC 5322).
_MAX_LINE: Final = 998


class Mail(EmailMultiAlternatives):
    """A mail whose long headers, such as links, are folded at spaces only, never encoded."""

    def message(self, **options: Any) -> Any:
        message = super().message(**options)
        message.policy = message.policy.clone(max_line_length=_MAX_LINE)
        return message


@dataclass(slots=True)
class _Kept:
    backend: Any
    used_at: float


class EmailProvider(ThreadedProvider):
    """Sends by SMTP, or by any other backend of Django's; its options go to the backend.

    The Message-ID is the same at every attempt, so that a second copy can be recognised. SMTP has
    no idempotency key, so a message in doubt is not repeated.
    ``timeout`` limits each wait for data from the server, in seconds.
    """

    def __init__(
        self, name: str, *, sender: str, backend: str = TRACKED, threads: int = 50,
        timeout: float = 10.0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(name, threads)
        shown, address = parseaddr(_check_sender(sender))
        address = normal_address(address)
        self._sender = sender if address in sender else formataddr((shown, address))
        self._domain = address.rpartition("@")[2]
        self._backend = backend
        self._options = options
        if backend == TRACKED:
            self._options = {**_NAMED, **options, "timeout": timeout}
        # The latest used last, so that N calls at a time need N connections.
        self._idle: list[_Kept] = []
        self._all: list[_Kept] = []

    def message_id(self, outgoing: Outgoing) -> str:
        return f"<{outgoing.id}@{self._domain}>"

    def close(self) -> None:
        super().close()
        for kept in self._all:
            _abandon(kept.backend)

    def send_now(self, outgoing: Outgoing) -> Outcome:
        """Send on a connection that no other thread uses; blocks."""
        kept = self._connected()
        try:
            return self._send_on(kept, outgoing)
        finally:
            kept.used_at = time.monotonic()
            self._idle.append(kept)

    def _send_on(self, kept: _Kept, outgoing: Outgoing) -> Outcome:
        is_new = kept.used_at == 0.0
        outcome, is_lost = self._try(kept, outgoing)
        # A server may end a session at any time: silently when idle, or by an answer, for example
        # after its maximum of messages. Nothing was accepted, so retry at once on a new connection.
        if is_lost and not is_new and outcome.verdict is Verdict.TRANSIENT:
            outcome, _ = self._try(kept, outgoing)
        return outcome

    def _connected(self) -> _Kept:
        try:
            kept = self._idle.pop()
        except IndexError:
            kept = _Kept(import_string(self._backend)(**self._options), 0.0)
            self._all.append(kept)
            return kept
        if time.monotonic() - kept.used_at > IDLE_SECONDS and not _is_alive(kept.backend):
            _abandon(kept.backend)
        return kept

    def _try(self, kept: _Kept, outgoing: Outgoing) -> tuple[Outcome, bool]:
        """Return the outcome, and whether the session has ended."""
        try:
            # Opened here, so that send_messages() leaves it open.
            kept.backend.open()
        except (smtplib.SMTPException, OSError) as error:
            _abandon(kept.backend)
            return _unopened(error), False
        try:
            message = self._message(outgoing)
            kept.backend.send_messages([message])
        except (smtplib.SMTPException, OSError) as error:
            outcome = _outcome_of(error, may_have_sent=_may_have_sent(kept.backend))
            is_lost = _ends_session(error, outcome)
            if is_lost:
                _abandon(kept.backend)
            return outcome, is_lost
        except ValueError as error:  # a header or an address that cannot be written
            return failed(Verdict.PERMANENT, error), False
        # Backends of Anymail return the provider's own id, which its events name.
        status = getattr(message, "anymail_status", None)
        provider_id = (status and status.message_id) or self.message_id(outgoing)
        return Outcome(Verdict.ACCEPTED, "250", str(provider_id)), False

    def _message(self, outgoing: Outgoing) -> Mail:
        message = Mail(
            outgoing.subject, outgoing.body, self._sender, [outgoing.recipient],
            headers={"Message-ID": self.message_id(outgoing), **headers_of(outgoing)},
        )  # fmt: skip
        if outgoing.html:
            message.attach_alternative(outgoing.html, "text/html")
        return message


def _ends_session(error: Exception, outcome: Outcome) -> bool:
    """True for a lost connection, 421, and a temporary refusal of MAIL.

    Some servers limit the messages of a session by such a refusal.
    """
    if outcome.code == "421":
        return True
    if isinstance(error, smtplib.SMTPSenderRefused):
        return error.smtp_code < 500
    return not isinstance(error, smtplib.SMTPResponseException | smtplib.SMTPRecipientsRefused)


def _check_sender(sender: str) -> str:
    """Return the sender; raise ValueError unless it is one address, with or without a name."""
    if not isinstance(sender, str) or not _is_one_address(sender):
        raise ValueError(
            "The sender is not an address. Write 'shop@example.org' or, with a "
            "name, '\"Shop, Inc.\" <shop@example.org>'; a name with a comma needs "
            "the quotation marks."
        )
    return sender


def _is_one_address(text: str) -> bool:
    """Return whether it is one address for a From header."""
    if any(each in text for each in "\r\n") or text.rstrip().endswith(","):
        return False
    try:
        found = policy.default.header_factory("From", text)
    except IndexError:  # Python's parser fails so where a domain is missing
        return False
    # A full stop in an unquoted name is obsolete, but all servers accept it.
    if any(not isinstance(each, ObsoleteHeaderDefect) for each in found.defects):
        return False
    is_single = len(found.addresses) == 1 and found.groups[0].display_name is None
    return is_single and bool(found.addresses[0].username and found.addresses[0].domain)


def _is_alive(backend: Any) -> bool:
    return backend.is_alive() if isinstance(backend, TrackedBackend) else True


def _may_have_sent(backend: Any) -> bool:
    # Unknown for another backend.
    return backend.may_have_sent if isinstance(backend, TrackedBackend) else True


def _abandon(backend: Any) -> None:
    if isinstance(backend, TrackedBackend):
        backend.abandon()


def _unopened(error: Exception) -> Outcome:
    """Return the outcome of a refused connection or login, which concerns no message.

    It is transient for all codes, also 554 and a missing STARTTLS; a lack of capacity is BUSY.
    """
    if isinstance(error, smtplib.SMTPResponseException):
        if error.smtp_code == 421 or _text_of(error.smtp_error).startswith("4.3.2"):
            return _answered(Verdict.BUSY, error.smtp_code, error.smtp_error)
        answered = _answered(Verdict.TRANSIENT, error.smtp_code, error.smtp_error)
        return replace(answered, blames_provider=True)
    return failed(Verdict.TRANSIENT, error)


def _outcome_of(error: Exception, *, may_have_sent: bool) -> Outcome:
    """Return the outcome of the server's refusal, or of no answer."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        [(code, text)] = error.recipients.values()
        return _refused(code, text)
    if isinstance(error, smtplib.SMTPSenderRefused) and error.smtp_code != _TOO_LARGE:
        # It concerns our sender, so another provider may accept it.
        return _answered(Verdict.TRANSIENT, error.smtp_code, error.smtp_error)
    if isinstance(error, smtplib.SMTPResponseException):
        return _refused(error.smtp_code, error.smtp_error)
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return failed(Verdict.PERMANENT, error)
    never_left = isinstance(error, ConnectionRefusedError | socket.gaierror)
    is_open = may_have_sent and not never_left
    return failed(Verdict.AMBIGUOUS if is_open else Verdict.TRANSIENT, error)


def _refused(code: int, text: Any) -> Outcome:
    is_permanent = code >= 500 and code not in _ACCOUNT
    return _answered(Verdict.PERMANENT if is_permanent else Verdict.TRANSIENT, code, text)


def _answered(verdict: Verdict, code: int, text: Any) -> Outcome:
    is_account = code in _ACCOUNT
    # 450 concerns one mailbox, and greylisting one server; neither is an outage.
    return Outcome(verdict, str(code), detail=cleaned(_text_of(text)), blames_provider=is_account)


def _text_of(answer: Any) -> str:
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
