"""Recipients: their validation by channel, and their hash."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from typing import Final

import phonenumbers
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import EmailValidator

from delayed_queue.exceptions import UrlRefused
from delayed_queue.http.callbacks.guard import check_url
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.models import Channel

MAX_EMAIL: Final = 254
MAX_CATEGORY: Final = 50
CATEGORY: Final = r"^([a-z0-9][a-z0-9_.-]*)?\Z"
_E164: Final = re.compile(r"\+[1-9][0-9]{6,14}")
# Without localhost, which would be the relay.
_check_email: Final = EmailValidator(allowlist=[])


def problem_with(channel: str, recipient: str) -> str:
    """Return what is wrong with a recipient of that channel; empty when nothing is.

    The text never repeats the recipient.
    """
    return _PROBLEMS[channel](recipient)


def check_category(category: str) -> str:
    """Return what is wrong with a category; empty when nothing is."""
    if len(category) > MAX_CATEGORY:
        return f"has more than {MAX_CATEGORY} characters"
    return "" if re.match(CATEGORY, category) else "must consist of a-z, 0-9, '.', '_' and '-'"


def _problem_with_email(address: str) -> str:
    try:
        _check_email(address)
        local, _, domain = address.rpartition("@")
        domain.encode("idna")
        # Quoted local parts may contain control characters, and few servers accept them. The
        # validator ignores case, so it accepts some letters outside ASCII.
        is_plain = address.isprintable() and not set(address) & set('" \\[') and local.isascii()
    except (ValidationError, UnicodeError):
        is_plain = False
    if not is_plain:
        return "is not an email address such as ada@example.org"
    return f"has more than {MAX_EMAIL} characters" if len(address) > MAX_EMAIL else ""


def _problem_with_phone(number: str) -> str:
    if not _E164.fullmatch(number):
        return "is not a number in E.164 form such as +447700900123"
    try:
        parsed = phonenumbers.parse(number)
    except phonenumbers.NumberParseException:
        return "is not a possible number of its country"
    # By length and country only, because lists of ranges in use are never complete.
    # IS_POSSIBLE excludes numbers that are dialled within a town only.
    reason = phonenumbers.is_possible_number_with_reason(parsed)
    if reason != phonenumbers.ValidationResult.IS_POSSIBLE:
        return "is not a possible number of its country"
    # One spelling per number, so that a suppression applies: +44 (0)7700 would work, too.
    written = phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164)
    return "" if written == number else "has digits that are not dialled from abroad"


def problem_with_url(url: str) -> str:
    """Return why a URL must not be posted to. Resolves no name."""
    try:
        check_url(url)
    except UrlRefused as error:
        return f"cannot be posted to: {error}"
    return ""


_PROBLEMS: Final = {
    Channel.EMAIL.value: _problem_with_email,
    Channel.SMS.value: _problem_with_phone,
    Channel.WEBHOOK.value: problem_with_url,
}


def recipient_hash(channel: str, recipient: str) -> bytes:
    """Return the keyed hash of 16 bytes, equal for all spellings of one recipient."""
    text = f"{channel}:{_normal(channel, recipient)}"
    return hmac.digest(_key(), text.encode(), hashlib.sha256)[:16]


def _normal(channel: str, recipient: str) -> str:
    """Return an email address in lower case: no known provider distinguishes case."""
    if channel != Channel.EMAIL:
        return recipient
    local, _, domain = recipient.rpartition("@")
    with contextlib.suppress(UnicodeError):
        domain = domain.encode("idna").decode("ascii")
    return f"{local}@{domain}".lower()


def _key() -> bytes:
    # The prefix separates it from other uses of the secret key.
    return (get_settings().HASH_KEY or f"notifications.recipient:{settings.SECRET_KEY}").encode()
