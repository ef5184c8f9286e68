"""Posting the operations of the admin, as their buttons do."""

from __future__ import annotations

from typing import Any

from django.test import Client

from tests.admin.support import MESSAGES, page, post, tokens

ON_MESSAGES = {
    "release": "release_message",
    "extend": "extend_message",
    "deliver": "deliver_message",
    "reject": "reject_message",
    "drop": "drop_message",
}
ON_LETTERS = {
    "redrive": "redrive_deadletter",
    "overwrite": "redrive_deadletter",
    "drop": "drop_deadletter",
}
CONFIRMED = {"confirmed": "yes", "reason": "by phone"}


def run(client: Client, action: str, url: str = MESSAGES) -> Any:
    """Do it to everything on the list, with the confirmation if it asks for one."""
    return post(client, url, action, tokens(page(client, url)), **CONFIRMED)
