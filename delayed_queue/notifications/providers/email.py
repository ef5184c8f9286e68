"""Email through Django's backends: one message per call, over kept connections."""

from __future__ import annotations

import smtplib
import socket
from contextlib import suppress
from dataclasses import replace
from email import policy
from email.errors import ObsoleteHeaderDefect
from email.utils import formataddr, parseaddr
from typing import Any, Final

import django
from django.core.exceptions import ImproperlyConfigured
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
from delayed_queue.notifications.requests import Mail
from delayed_queue.notifications.services import Outgoing
from delayed_queue.notifications.unsubscribing import headers_of


class Tracked(smtplib.SMTP):
    """Records when the body of a message was sent: then a lost answer may mean "accepted"."""

    has_sent_body = _has_recipient = False

    def mail(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        self.has_sent_body, self._has_recipient = False, False
        return super().mail(*args, **kwargs)

    def rcpt(self, recip: str, options: Any = ()) -> tuple[int, bytes]:
        code, answer = super().rcpt(recip, options)
        # Copies follow the recipient; without it they get nothing. smtplib handles 421.
        if not self._has_recipient and code not in (250, 251, 421):
            self._rset()  # type: ignore[attr-defined]
            raise smtplib.SMTPRecipientsRefused({recip: (code, answer)})
        self._has_recipient = True
        return code, answer

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
# Refusals that concern our account, not the message.
_ACCOUNT: Final = frozenset({421, 454, 530, 534, 535, 538})
_TOO_LARGE: Final = 552
# Errors of a backend that the settings cause.
_SETTING: Final = (ImportError, TypeError, ValueError, ImproperlyConfigured)
# Characters of a line of a mail (RFC 5322).
_MAX_LINE: Final = 998


class FoldedMail(EmailMultiAlternatives):
    """A mail whose long headers, such as links, are folded at spaces only, never encoded."""

    def message(self, **options: Any) -> Any:
        message = super().message(**options)
        message.policy = message.policy.clone(max_line_length=_MAX_LINE)
        return message


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
        self._idle: list[Any] = []
        self._all: list[Any] = []

    def message_id(self, outgoing: Outgoing) -> str:
        return f"<{outgoing.id}@{self._domain}>"

    def close(self) -> None:
        super().close()
        for backend in self._all:
            _abandon(backend)

    def send_now(self, outgoing: Outgoing) -> Outcome:
        """Send on a connection that no other thread uses; blocks."""
        try:
            backend = self._taken()
        except _SETTING as error:
            return failed(Verdict.TRANSIENT, error)
        try:
            return self._send_on(backend, outgoing)
        finally:
            self._idle.append(backend)

    def check(self, probe: Outgoing) -> None:
        """Make a connection's backend and write a message; raises what is wrong."""
        self._made()
        self._message(probe).message().as_bytes()

    def _taken(self) -> Any:
        # Not by a check before: another thread may take the last one in between.
        with suppress(IndexError):
            return self._idle.pop()
        return self._made()

    def _made(self) -> Any:
        backend = import_string(self._backend)(**self._options)
        self._all.append(backend)
        return backend

    def _send_on(self, backend: Any, outgoing: Outgoing) -> Outcome:
        is_kept = getattr(backend, "connection", None) is not None
        outcome, is_lost = self._try(backend, outgoing)
        # A server may end a session at any time: silently when idle, or by an answer, for example
        # after its maximum of messages. Nothing was accepted, so retry at once on a new connection.
        if is_lost and is_kept and outcome.verdict is Verdict.TRANSIENT:
            outcome, _ = self._try(backend, outgoing)
        return outcome

    def _try(self, backend: Any, outgoing: Outgoing) -> tuple[Outcome, bool]:
        """Return the outcome, and whether the session has ended."""
        try:
            # Opened here, so that send_messages() leaves it open.
            backend.open()
        except (smtplib.SMTPException, OSError) as error:
            _abandon(backend)
            return _unopened(error), False
        try:
            message = self._message(outgoing)
            backend.send_messages([message])
        except (smtplib.SMTPException, OSError) as error:
            outcome = _outcome_of(error, may_have_sent=_may_have_sent(backend))
            is_lost = _ends_session(error, outcome)
            if is_lost:
                _abandon(backend)
            return outcome, is_lost
        except ImproperlyConfigured as error:
            return failed(Verdict.TRANSIENT, error), False
        except ValueError as error:  # a header or an address that cannot be written
            return failed(Verdict.PERMANENT, error), False
        # Backends of Anymail return the provider's own id, which its events name.
        status = getattr(message, "anymail_status", None)
        provider_id = (status and status.message_id) or self.message_id(outgoing)
        return Outcome(Verdict.ACCEPTED, "250", str(provider_id)), False

    def _message(self, outgoing: Outgoing) -> FoldedMail:
        extras = outgoing.extras or Mail()
        own = {"Message-ID": self.message_id(outgoing), **headers_of(outgoing)}
        message = FoldedMail(
            outgoing.subject, outgoing.body, self._sender, [outgoing.recipient],
            headers={**extras.headers, **own}, cc=extras.cc,
            reply_to=[extras.reply_to] if extras.reply_to else None,
        )  # fmt: skip
        if outgoing.html:
            message.attach_alternative(outgoing.html, "text/html")
        for each in extras.attachments:
            message.attach(each.name, each.content, each.type)
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
        code, text = next(iter(error.recipients.values()))
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
