"""Helpers for the lists of the admin."""

from __future__ import annotations

from html import unescape

from delayed_queue.models import DeadLetter, Message
from tests.admin.support import LETTERS, MESSAGES

MODELS = [(Message, MESSAGES), (DeadLetter, LETTERS)]


def keys_of(html: str) -> list[str]:
    """Return the keys of a list, in order."""
    return [unescape(each.split("</span>")[0]) for each in html.split('<span class="dq-key">')[1:]]
