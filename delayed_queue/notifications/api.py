"""The REST interface: ``/v1/notifications``, built of the endpoints of the job API."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Final

from django.http import HttpResponse
from django.urls import path
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from delayed_queue.conf import MIB
from delayed_queue.http.api.auth import ApiRequest, charge, demand_scope
from delayed_queue.http.api.bodies import JSON, NDJSON, lines_of, parse, reply
from delayed_queue.http.api.endpoints import Endpoints
from delayed_queue.http.api.openapi import Api
from delayed_queue.http.api.parameters import Time, shown
from delayed_queue.http.api.problems import Problem, invalid
from delayed_queue.notifications import intake, managing
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.events import receive
from delayed_queue.notifications.intake import DEPTH, Accepted, Refused, body_bytes, read_json
from delayed_queue.notifications.models import (
    Channel,
    Notification,
    Priority,
    Reception,
    Status,
    Suppression,
)
from delayed_queue.notifications.recipients import problem_with
from delayed_queue.notifications.requests import NotificationRequest, SuppressionRequest
from delayed_queue.notifications.unsubscribing import unsubscribe
from delayed_queue.notifications.validation import FieldError

TOPIC: Final = "notifications"
MAX_PAGE: Final = 500
BULK_BYTES: Final = 8 * MIB
calls: Final = Endpoints("notifications")

# A rule that no type expresses: a template or a body.
NotificationBody = Annotated[
    NotificationRequest,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"required": ["template"], "properties": {"template": {"type": "string"}}},
                {"required": ["body"]},
            ]
        }
    ),
]
_MANY: Final = Meta(extra_json_schema={"maxItems": "NOTIFICATIONS.BULK_ITEMS"})


class ListQuery(Struct, forbid_unknown_fields=True):
    """A page of the list, in some states or in all."""

    status: list[Status] | UnsetType = UNSET
    cursor: uuid.UUID | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 50


# Replies


class AcceptedReply(Struct):
    """An accepted request; ``duplicate``: the key was used before, by the notification ``id``.

    ``segments``: the number of segments of an SMS.
    """

    id: uuid.UUID
    status: Status
    duplicate: bool = False
    segments: int | UnsetType = UNSET


class BulkItem(Struct):
    """The result of one item: ``id`` and ``status``, or ``errors``."""

    index: int
    id: uuid.UUID | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    segments: int | UnsetType = UNSET
    errors: Sequence[FieldError] | UnsetType = UNSET


class BulkReply(Struct):
    """The result of each item of a bulk."""

    accepted: int
    refused: int
    items: list[BulkItem]


class DeliveryReply(Struct, rename="camel"):
    """One call of a provider."""

    at: Time
    attempt: int
    provider: str
    outcome: str
    error_class: str
    duration_ms: int | None


class NotificationReply(Struct, rename="camel"):
    """A notification without recipient and contents, which its sender knows."""

    id: uuid.UUID
    status: Status
    channel: Channel
    priority: Priority
    category: str
    template: str
    template_version: int | None
    dedupe_key: str
    send_at: Time
    expires_at: Time | None
    created_at: Time
    started_at: Time | None
    ended_at: Time | None
    attempts: int
    provider: str
    provider_id: str
    outcome: str
    error_class: str
    delivery: Reception


class NotificationDetail(NotificationReply, rename="camel"):
    """A notification, and each call of a provider that was made for it."""

    deliveries: list[DeliveryReply]


class NotificationPage(Struct):
    """``next`` is the cursor of the next page; null on the last."""

    items: list[NotificationReply]
    next: uuid.UUID | None


@calls.post(
    "notifications",
    "add",
    status=202,
    accepts={JSON: NotificationBody},
    limit=lambda _: body_bytes(),
    answer=AcceptedReply,
)
def send(request: ApiRequest) -> HttpResponse:
    """Store one notification to be sent. A failure is reported by callback and in the status."""
    demand_scope(request, "add", TOPIC)
    raw = parse(request.body, DEPTH)
    (answer,) = intake.accept([raw], tenant=tenant_of(request))
    if isinstance(answer, Refused):
        raise _invalid(answer.errors)
    accepted = AcceptedReply(
        answer.id, answer.status, answer.is_duplicate, answer.segments or UNSET
    )
    return reply(202, accepted, Location=f"{request.path.rstrip('/')}/{answer.id}")


@calls.post(
    "notifications/bulk",
    "add",
    status=202,
    accepts={JSON: Annotated[list[NotificationBody], _MANY], NDJSON: str},
    limit=lambda _: BULK_BYTES,
)
def send_many(request: ApiRequest) -> BulkReply:
    """Store the valid ones of many notifications in one transaction; return each item's result."""
    demand_scope(request, "add", TOPIC)
    raws = _items(request)
    charge(request, len(raws))
    answers = intake.accept(raws, tenant=tenant_of(request))
    items = [_bulk_item(index, each) for index, each in enumerate(answers)]
    accepted = sum(item.id is not UNSET for item in items)
    return BulkReply(accepted, len(items) - accepted, items)


@calls.get("notifications", "read")
def list_some(request: ApiRequest, query: ListQuery) -> NotificationPage:
    """List notifications, newest first, in some states or in all."""
    demand_scope(request, "read", TOPIC)
    states = list(dict.fromkeys(query.status or Status))
    found = managing.page(states, owner_of(request), query.cursor or None, query.limit)
    return NotificationPage([shown(each, NotificationReply) for each in found.items], found.next)


@calls.get("notifications/<uuid:id>", "read", errors=[404])
def show(request: ApiRequest, id: uuid.UUID) -> NotificationDetail:  # noqa: A002 # the name in the path
    """Return a notification, and each call of a provider that was made for it."""
    found = _found(request, id, "read")
    calls = found.deliveries.order_by("id")[:MAX_PAGE]
    deliveries = [shown(each, DeliveryReply) for each in calls]
    return NotificationDetail(
        **structs.asdict(shown(found, NotificationReply)), deliveries=deliveries
    )


@calls.delete("notifications/<uuid:id>", "delete", errors=[404, 409])
def cancel(request: ApiRequest, id: uuid.UUID) -> None:  # noqa: A002
    """Cancel a waiting notification; 409 once it is being sent or has ended otherwise."""
    _found(request, id, "delete")
    if not managing.cancel(id) and _found(request, id, "delete").status != Status.CANCELLED:
        raise _conflict(request, id, "not_cancellable")


@calls.post("notifications/<uuid:id>/retry", "add", status=202, errors=[404, 409])
def retry(request: ApiRequest, id: uuid.UUID) -> AcceptedReply:  # noqa: A002
    """Send a failed notification again; 409 in any other state, and after its expiry."""
    _found(request, id, "add")
    if not managing.retry(id):
        raise _conflict(request, id, "not_retryable")
    return AcceptedReply(id, Status.ENQUEUED)


@calls.post("suppressions", "manage")
def suppress(request: ApiRequest, body: SuppressionRequest) -> None:
    """Send nothing more to a recipient, of any sender: in one category, or at all."""
    _check_recipient(request, body)
    reason = body.reason or Suppression.Reason.OPT_OUT
    managing.suppress(body.channel, body.to, body.category or "", reason)


@calls.post("suppressions/lift", "manage")
def lift_suppression(request: ApiRequest, body: SuppressionRequest) -> None:
    """Send to a recipient again; also 204 where there was no suppression."""
    _check_recipient(request, body)
    managing.lift(body.channel, body.to, body.category or "")


def _check_recipient(request: ApiRequest, body: SuppressionRequest) -> None:
    demand_scope(request, "manage", TOPIC)
    if problem := problem_with(body.channel, body.to):
        raise invalid("body", [("to", problem)])


def tenant_of(request: ApiRequest) -> str:
    """Return the owner of the caller's notifications: its token's name, up to a slash.

    So ``shop/2031`` continues where ``shop/2030`` was revoked.
    """
    return request.auth.name.partition("/")[0]


def owner_of(request: ApiRequest) -> str | None:
    """Return the tenant the caller is limited to; None for a token that may manage."""
    return None if request.auth.may("manage", TOPIC) else tenant_of(request)


def _found(request: ApiRequest, id_: uuid.UUID, verb: str) -> Notification:
    demand_scope(request, verb, TOPIC)
    found = managing.find(id_, owner_of(request))
    if found is None:
        raise Problem(404, "not_found")
    return found


def _conflict(request: ApiRequest, id_: uuid.UUID, code: str) -> Problem:
    found = managing.find(id_, owner_of(request))
    detail = f"The notification is {found.status}." if found else ""
    return Problem(409, code, detail=detail)


def _invalid(errors: Sequence[FieldError]) -> Problem:
    return invalid("body", [(each.path, each.message) for each in errors])


def _bulk_item(index: int, answer: Accepted | Refused) -> BulkItem:
    if isinstance(answer, Refused):
        return BulkItem(index, errors=answer.errors)
    segments = answer.segments or UNSET
    return BulkItem(index, answer.id, answer.status, answer.is_duplicate or UNSET, segments)


def _items(request: ApiRequest) -> list[Any]:
    """Return the parsed items of a bulk body; a Refused for each line that is no JSON."""
    most = get_settings().BULK_ITEMS
    if request.content_type == NDJSON:
        return list(map(read_json, lines_of(request.body, most)))
    items = parse(request.body, DEPTH + 1, most=most)
    if not isinstance(items, list):
        raise _invalid([FieldError("", "must be a JSON array")])
    return items


api: Final = Api(
    "Notifications",
    "1",
    "notifications-api",
    "Send an email, SMS or webhook. Failures are reported by callback and in the status.",
    calls,
    pages=[
        path("unsubscribe/<str:token>", unsubscribe, name="unsubscribe"),
        path("events/<str:provider>", receive, name="events"),
    ],
)
