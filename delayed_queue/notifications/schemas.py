"""What the REST interface takes and answers, for its description and for its answers."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from ninja import Schema

from delayed_queue.notifications.models import Channel, Delivery, Notification, Priority
from delayed_queue.notifications.models import Status as State
from delayed_queue.notifications.validation import MAX_CATEGORY, MAX_KEY, MAX_SUBJECT, FieldError


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(each.title() for each in rest)


class Out(Schema):
    model_config = {"alias_generator": camel, "populate_by_name": True}


class Field(Out):
    path: str
    message: str


class Taken(Out):
    """An accepted request: ``duplicate`` says that its key was taken, and by which."""

    id: uuid.UUID
    status: State
    duplicate: bool = False


class BulkItem(Out):
    """The result of one item: ``id`` and ``status``, or ``errors``."""

    index: int
    id: uuid.UUID | None = None
    status: State | None = None
    duplicate: bool | None = None
    errors: list[Field] | None = None


class Bulk(Out):
    accepted: int
    refused: int
    items: list[BulkItem]


class DeliveryOut(Out):
    """One call of a provider."""

    at: datetime
    attempt: int
    provider: str
    outcome: str
    error_class: str
    duration_ms: int | None


class NotificationOut(Out):
    """A notification as its sender sees it: without recipient and contents, which it knows."""

    id: uuid.UUID
    status: State
    channel: Channel
    priority: Priority
    category: str
    template: str
    template_version: int | None
    dedupe_key: str
    send_at: datetime
    expires_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    attempts: int
    provider: str
    provider_id: str
    outcome: str
    error_class: str


class NotificationDetail(NotificationOut):
    deliveries: list[DeliveryOut]


class NotificationPage(Out):
    """``next`` is the cursor of the page after this; absent on the last."""

    items: list[NotificationOut]
    next: uuid.UUID | None = None


_TEXT: Final = {"type": "string"}
_INSTANT: Final = {"type": "string", "format": "date-time"}
NOTIFICATION: Final[dict[str, Any]] = {
    "type": "object",
    "title": "NotificationIn",
    "required": ["channel", "to"],
    "additionalProperties": False,
    "properties": {
        "channel": {"type": "string", "enum": Channel.values},
        "to": {
            "type": "string",
            "description": "An email address, a number in E.164 form, or an http(s) URL.",
        },
        "template": {"type": "string", "description": "Its name; instead of subject and body."},
        "templateVersion": {"type": "integer", "minimum": 1, "description": "Default: the last."},
        "context": {"type": "object", "description": "The variables of the template."},
        "subject": {"type": "string", "maxLength": MAX_SUBJECT, "description": "Of an email."},
        "body": {"description": "A text; for a webhook, any JSON value."},
        "html": {"type": "string", "description": "Of an email, beside the text."},
        "category": {"type": "string", "maxLength": MAX_CATEGORY},
        "priority": {"type": "string", "enum": Priority.values, "default": "normal"},
        "sendAt": _INSTANT | {"description": "Not before; default at once."},
        "expiresAt": _INSTANT | {"description": "Not after: it is EXPIRED instead of late."},
        "dedupeKey": {"type": "string", "minLength": 1, "maxLength": MAX_KEY},
        "callbackUrl": {"type": "string", "format": "uri"},
    },
}
SUPPRESSION: Final[dict[str, Any]] = {
    "type": "object",
    "title": "SuppressionIn",
    "required": ["channel", "to"],
    "additionalProperties": False,
    "properties": {
        "channel": {"type": "string", "enum": Channel.values},
        "to": _TEXT,
        "category": {"type": "string", "description": "Default: all of them."},
        "reason": {"type": "string", "enum": ["opt-out", "bounce", "complaint"]},
    },
}


def described(schema: dict[str, Any], *, many: bool = False) -> dict[str, Any]:
    """Return what tells OpenAPI of a body that the view reads itself."""
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if many:
        content["application/json"]["schema"] = {"type": "array", "items": schema}
        content["application/x-ndjson"] = {"schema": {"type": "string"}}
    return {"requestBody": {"required": True, "content": content}}


def shown(notification: Notification) -> NotificationOut:
    return NotificationOut.model_validate(notification, from_attributes=True)


def shown_delivery(delivery: Delivery) -> DeliveryOut:
    return DeliveryOut.model_validate(delivery, from_attributes=True)


def shown_fields(errors: Sequence[FieldError]) -> list[Field]:
    return [Field(path=each.path, message=each.message) for each in errors]
