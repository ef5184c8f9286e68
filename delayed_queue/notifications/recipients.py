"""Recipients: their validation by channel, and their hash."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from typing import Final

import idna
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
        address = normal_address(address)
        _check_email(address)
        local = address.rpartition("@")[0]
        # Quoted local parts may contain control characters, and few servers accept them. The
        # validator ignores case, so it accepts some letters outside ASCII.
        is_plain = address.isprintable() and not set(address) & set('" \\[') and local.isascii()
    except (ValidationError, UnicodeError):  # an IDNAError is one
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


def problem_with_url(url: str, use: str = "posted to") -> str:
    """Return why a URL must not be called. Resolves no name."""
    try:
        check_url(url)
    except UrlRefused as error:
        return f"cannot be {use}: {error}"
    return ""


_PROBLEMS: Final = {
    Channel.EMAIL.value: _problem_with_email,
    Channel.SMS.value: _problem_with_phone,
    Channel.WEBHOOK.value: problem_with_url,
}


def ascii_domain(domain: str) -> str:
    """Return a domain as mail servers look it up: by IDNA 2008 after the mapping of UTS 46.

    Python's own codec is IDNA 2003, by which "faß.de" is "fass.de", another owner's domain. Raises
    UnicodeError.
    """
    lower = domain.lower()
    if lower.isascii() and "xn--" not in lower:
        return lower
    return idna.encode(lower, uts46=True).decode()


def normal_address(address: str) -> str:
    """Return an address with its domain in ASCII, as it is stored and sent."""
    local, _, domain = address.rpartition("@")
    return f"{local}@{ascii_domain(domain)}"


def recipient_hash(channel: str, recipient: str) -> bytes:
    """Return the keyed hash of 16 bytes, equal for all spellings of one recipient."""
    with contextlib.suppress(UnicodeError):
        recipient = normal(channel, recipient)
    return hash_of(channel, recipient)


def hash_of(channel: str, recipient: str) -> bytes:
    """Return the keyed hash of a normal recipient."""
    # An address in lower case: no known provider distinguishes case.
    text = recipient.lower() if channel == Channel.EMAIL else recipient
    return hmac.digest(_key(), f"{channel}:{text}".encode(), hashlib.sha256)[:16]


def normal(channel: str, recipient: str) -> str:
    """Return a valid recipient as it is stored and sent."""
    return normal_address(recipient) if channel == Channel.EMAIL else recipient


def hash_by_idna_2003(address: str) -> bytes:
    """Return the hash that earlier versions stored for an address."""
    local, _, domain = address.rpartition("@")
    with contextlib.suppress(UnicodeError):
        domain = domain.encode("idna").decode()
    return hash_of(Channel.EMAIL, f"{local}@{domain}")


def _key() -> bytes:
    # The prefix separates it from other uses of the secret key.
    return (get_settings().HASH_KEY or f"notifications.recipient:{settings.SECRET_KEY}").encode()
