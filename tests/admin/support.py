"""Helpers of the admin tests: operators, and the forms they post."""

from __future__ import annotations

import re
from html import unescape
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.messages import get_messages
from django.test import Client

MESSAGES: Final = "/admin/delayed_queue/message/"
LETTERS: Final = "/admin/delayed_queue/deadletter/"
QUEUES: Final = "/admin/delayed_queue/queueoverview/"
_TOKEN: Final = re.compile(r'name="_selected_action" value="([^"]*)"')


def operator(*permissions: str, **options: Any) -> Client:
    """A client that is logged in as staff with just those permissions."""
    users = get_user_model().objects
    user = users.create_user(f"op-{users.count()}", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(
            content_type__app_label__startswith="delayed_queue", codename__in=permissions
        )
    )
    client = Client(**options)
    client.force_login(user)
    return client


def page(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200, response
    return response.content.decode()


def tokens(html: str) -> list[str]:
    """Return the values of the checkboxes of a list, or of the buttons of a detail page."""
    return [unescape(each) for each in _TOKEN.findall(html)]


def post(client: Client, url: str, action: str, selected: list[str], **data: str) -> Any:
    return client.post(url, {"action": action, "_selected_action": selected, **data})


def told(response: Any) -> list[str]:
    """Return the messages that the operator sees after a post."""
    return [str(each) for each in get_messages(response.wsgi_request)]
