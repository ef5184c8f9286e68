"""Requests as upstream services send them."""

from __future__ import annotations

from typing import Any

from delayed_queue.notifications.models import Template


def email(**values: Any) -> dict[str, Any]:
    return {
        "channel": "email", "to": "ada@example.org", "subject": "Hello", "body": "Hello, Ada.",
    } | values  # fmt: skip


def sms(**values: Any) -> dict[str, Any]:
    return {"channel": "sms", "to": "+40721234567", "body": "Your code is 123456."} | values


def webhook(**values: Any) -> dict[str, Any]:
    return {
        "channel": "webhook", "to": "https://shop.example/hooks", "body": {"paid": True},
    } | values  # fmt: skip


def template(**values: Any) -> Template:
    """Return an unsaved template of an email."""
    defaults = {
        "name": "welcome",
        "channel": "email",
        "version": 1,
        "subject": "Welcome, {{ name }}",
        "body": "Dear {{ name }}, welcome.",
        "html": "<p>Dear {{ name }}, welcome.</p>",
    }
    return Template(**defaults | values)
