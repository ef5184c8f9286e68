"""Posts of the admin's operations, as their buttons send them."""

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
    "drop": "drop_deadletter",
}
CONFIRMED = {"confirmed": "yes", "reason": "by phone"}


def run(client: Client, action: str, url: str = MESSAGES) -> Any:
    """Run the action on every row of the list, and confirm it if required."""
    return post(client, url, action, tokens(page(client, url)), **CONFIRMED)
