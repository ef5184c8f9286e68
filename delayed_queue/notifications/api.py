"""The REST interface: ``/v1/notifications`` in the frame of the job API."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status

from delayed_queue.http.api import Problem, make_api, requires, takes_body
from delayed_queue.http.api.auth import charge, demand_scope
from delayed_queue.http.api.bodies import BodyRule, admit, lines_of, parse
from delayed_queue.http.api.building import Quick
from delayed_queue.http.api.docs import URL_PATTERN
from delayed_queue.http.api.replies import reply
from delayed_queue.http.callbacks.guard import MAX_URL
from delayed_queue.notifications import intake, managing
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.intake import Accepted, Refused
from delayed_queue.notifications.managing import change_suppression
from delayed_queue.notifications.models import Channel, Delivery, Notification, Priority, Source
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


# null is as if the field were absent, but for the body of a webhook.
_TEXT: Final = {"type": ["string", "null"]}
_INSTANT: Final = _TEXT | {"format": "date-time"}
_CATEGORY: Final = _TEXT | {"maxLength": MAX_CATEGORY, "pattern": r"^([a-z0-9][a-z0-9_.-]*)?$"}
_LINE: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
NOTIFICATION: Final[dict[str, Any]] = {
    "type": "object",
    "title": "NotificationIn",
    "required": ["channel", "to"],
    "additionalProperties": False,
    "properties": {
        "channel": {"type": "string", "enum": Channel.values},
        "to": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_URL,
            "description": "An email address, a number in E.164 form, or an http(s) URL.",
        },
        "template": _TEXT | {
            "pattern": "^[A-Za-z0-9_-]{1,100}$",
            "description": "The name of a template, instead of subject and body.",
        },
        "templateVersion": {
            "type": ["integer", "null"], "minimum": 1, "maximum": 2**31 - 1,
            "description": "Default: the latest version.",
        },
        "context": {"type": ["object", "null"], "description": "The variables of the template."},
        "subject": _TEXT | {
            "maxLength": MAX_SUBJECT, "pattern": _LINE, "description": "The subject of an email.",
        },
        "body": {"description": "Text; for a webhook, any JSON value."},
        "html": _TEXT | {"description": "The HTML version of an email, in addition to the text."},
        "category": _CATEGORY,
        "priority": {"enum": [*Priority.values, None], "default": "normal"},
        "sendAt": _INSTANT | {"description": "Send at this time or later. Default: at once."},
        "expiresAt": _INSTANT | {"description":
            "Do not send after this time; the notification becomes EXPIRED."},
        "dedupeKey": _TEXT | {"minLength": 1, "maxLength": MAX_KEY, "pattern": _LINE},
        "callbackUrl": _TEXT | {"pattern": URL_PATTERN, "maxLength": MAX_URL},
    },
    "anyOf": [
        {"required": ["template"], "properties": {"template": {"type": "string"}}},
        {"required": ["body"]},
    ],
}  # fmt: skip
SUPPRESSION: Final[dict[str, Any]] = {
    "type": "object",
    "title": "SuppressionIn",
    "required": ["channel", "to"],
    "additionalProperties": False,
    "properties": {
        "channel": {"type": "string", "enum": Channel.values},
        "to": {"type": "string", "minLength": 1, "maxLength": MAX_URL},
        "category": _CATEGORY | {"description": "Default: all of them."},
        "reason": {"enum": ["opt-out", "bounce", "complaint", None]},
    },
}


def described(schema: dict[str, Any], *, many: bool = False) -> dict[str, Any]:
    """Return what tells OpenAPI of a body that the view reads itself."""
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if many:
        content["application/json"]["schema"] = {
            "type": "array", "items": schema, "maxItems": "NOTIFICATIONS.BULK_ITEMS",
        }  # fmt: skip
        content["application/x-ndjson"] = {"schema": {"type": "string"}}
    return {"requestBody": {"required": True, "content": content}}


def shown(notification: Notification) -> NotificationOut:
    return NotificationOut.model_validate(notification, from_attributes=True)


def shown_delivery(delivery: Delivery) -> DeliveryOut:
    return DeliveryOut.model_validate(delivery, from_attributes=True)


def shown_fields(errors: Sequence[FieldError]) -> list[Field]:
    return [Field(path=each.path, message=each.message) for each in errors]


TOPIC: Final = "notifications"
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
# Deeper than validation allows, so that it is validation that tells.
DEPTH: Final = 32
MAX_PAGE: Final = 500
router: Final = Router(tags=["notifications"])
_MAY_SEND: Final = requires("add")
_SENDS: Final = BodyRule(lambda _: get_settings().BODY_BYTES, (JSON,))


@router.post(
    "/notifications",
    auth=_MAY_SEND,
    response={202: Taken},
    openapi_extra=described(NOTIFICATION),
)
@takes_body(_SENDS.limit, *_SENDS.types)
def send(request: HttpRequest) -> Any:
    """Accept one notification: it is stored, and will be sent or told of."""
    return _sent(request)


def _is_plain(request: HttpRequest) -> bool:
    return request.method == "POST" and not request.META.get("QUERY_STRING")


def send_plainly(request: Any) -> HttpResponse:
    """Do what ``send`` does."""
    request.auth = _MAY_SEND.let_in(request)
    admit(request, _SENDS)
    return _sent(request)


def _sent(request: HttpRequest) -> HttpResponse:
    demand_scope(request, "add", TOPIC)
    raw = parse(request.body, DEPTH)
    (answer,) = intake.accept([raw], tenant=tenant_of(request), source=Source.REST)
    if isinstance(answer, Refused):
        raise invalid(answer.errors)
    taken = {"id": str(answer.id), "status": answer.status, "duplicate": answer.is_duplicate}
    return reply(202, taken, Location=f"{request.path.rstrip('/')}/{answer.id}")


@router.post(
    "/notifications/bulk",
    auth=requires("add"),
    response={202: Bulk},
    exclude_none=True,
    by_alias=True,
    openapi_extra=described(NOTIFICATION, many=True),
)
@takes_body(lambda _: get_settings().BULK_BYTES, JSON, NDJSON)
def send_many(request: HttpRequest) -> Any:
    """Accept the valid ones of many notifications, in one transaction; say of each what became."""
    demand_scope(request, "add", TOPIC)
    raws = _items(request)
    charge(request, len(raws))
    sound = [each for each in raws if not isinstance(each, Refused)]
    answers = iter(intake.accept(sound, tenant=tenant_of(request), source=Source.REST))
    results = [each if isinstance(each, Refused) else next(answers) for each in raws]
    items = [_bulk_item(index, each) for index, each in enumerate(results)]
    accepted = sum(item.id is not None for item in items)
    return Status(202, Bulk(accepted=accepted, refused=len(items) - accepted, items=items))


@router.get("/notifications", auth=requires("read"), response=NotificationPage, by_alias=True)
def list_some(
    request: HttpRequest,
    status: Annotated[list[State] | None, Query()] = None,
    cursor: uuid.UUID | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> Any:
    """List notifications, newest first, in some states or in all."""
    demand_scope(request, "read", TOPIC)
    states = list(dict.fromkeys(status or State))
    found = managing.page(states, owner_of(request), cursor, limit)
    return NotificationPage(items=[shown(each) for each in found.items], next=found.next)


@router.get(
    "/notifications/{uuid:id}",
    auth=requires("read"),
    response={200: NotificationDetail, 404: None},
    by_alias=True,
)
def show(request: HttpRequest, id: uuid.UUID) -> Any:  # noqa: A002 # the name in the path
    """Show a notification, and each call of a provider that was made for it."""
    found = _found(request, id, "read")
    calls = found.deliveries.order_by("id")[:MAX_PAGE]
    return NotificationDetail(
        **shown(found).model_dump(), deliveries=[shown_delivery(each) for each in calls]
    )


@router.delete(
    "/notifications/{uuid:id}", auth=requires("delete"), response={204: None, 404: None, 409: None}
)
def cancel(request: HttpRequest, id: uuid.UUID) -> Any:  # noqa: A002
    """Cancel a notification that waits; 409 once it is being sent, or has ended otherwise."""
    _found(request, id, "delete")
    if managing.cancel(id) or _found(request, id, "delete").status == State.CANCELLED:
        return Status(204, None)
    raise _conflict(request, id, "not_cancellable")


@router.post(
    "/notifications/{uuid:id}/retry",
    auth=requires("add"),
    response={202: Taken, 404: None, 409: None},
)
def retry(request: HttpRequest, id: uuid.UUID) -> Any:  # noqa: A002
    """Send a failed notification again; 409 in any other state, and after its expiry."""
    _found(request, id, "add")
    if not managing.retry(id):
        raise _conflict(request, id, "not_retryable")
    return Status(202, Taken(id=id, status=State.ENQUEUED))


@router.post(
    "/suppressions", auth=requires("manage"), response={204: None},
    openapi_extra=described(SUPPRESSION),
)  # fmt: skip
@takes_body(lambda _: get_settings().BODY_BYTES, JSON)
def suppress(request: HttpRequest) -> Any:
    """Write no more to a recipient, whoever asks: in one category, or at all."""
    return _suppression(request, is_lifted=False)


@router.post(
    "/suppressions/lift", auth=requires("manage"), response={204: None},
    openapi_extra=described(SUPPRESSION),
)  # fmt: skip
@takes_body(lambda _: get_settings().BODY_BYTES, JSON)
def lift_suppression(request: HttpRequest) -> Any:
    """Write to a recipient again; also 204 where there was no suppression."""
    return _suppression(request, is_lifted=True)


def _suppression(request: HttpRequest, *, is_lifted: bool) -> Any:
    demand_scope(request, "manage", TOPIC)
    if errors := change_suppression(parse(request.body, DEPTH), is_lifted=is_lifted):
        raise invalid(errors)
    return Status(204, None)


def tenant_of(request: Any) -> str:
    """Return whose notifications the caller's are: its token's name, up to a slash.

    So ``shop/2031`` goes on where ``shop/2030`` was revoked.
    """
    name: str = request.auth.name.partition("/")[0]
    return name


def owner_of(request: Any) -> str | None:
    """Return the tenant the caller is limited to; None for a token that may manage."""
    return None if request.auth.may("manage", TOPIC) else tenant_of(request)


def _found(request: HttpRequest, id_: uuid.UUID, verb: str) -> Notification:
    demand_scope(request, verb, TOPIC)
    found = managing.find(id_, owner_of(request))
    if found is None:
        raise Problem(404, "not_found")
    return found


def _conflict(request: HttpRequest, id_: uuid.UUID, code: str) -> Problem:
    found = managing.find(id_, owner_of(request))
    detail = f"The notification is {found.status}." if found else ""
    return Problem(409, code, detail=detail)


def invalid(errors: Sequence[FieldError]) -> Problem:
    """Return the problem that names each wrong field."""
    told = [{"in": "body"} | each.as_dict() for each in errors]
    return Problem(400, "invalid_request", "Invalid request", errors=told)


def _bulk_item(index: int, answer: Accepted | Refused) -> BulkItem:
    if isinstance(answer, Refused):
        return BulkItem(index=index, errors=shown_fields(answer.errors))
    return BulkItem(
        index=index, id=answer.id, status=answer.status, duplicate=answer.is_duplicate or None
    )


def _items(request: HttpRequest) -> list[Any]:
    """Return the parsed items of a bulk body; a Refused for each line that is no JSON."""
    most = get_settings().BULK_ITEMS
    if request.content_type == NDJSON:
        return list(map(_parsed, lines_of(request.body, most)))
    items = parse(request.body, DEPTH + 1, most=most)
    if not isinstance(items, list):
        raise invalid([FieldError("", "must be a JSON array")])
    return items


def _parsed(line: bytes) -> Any:
    try:
        return parse(line, DEPTH)
    except Problem as problem:
        return Refused([FieldError("", f"is malformed JSON: {problem.detail}")])


api: Final = make_api(
    "Notifications",
    "1",
    "notifications-api",
    description="Send an email, SMS or webhook. Failures are reported by callback and in the "
    "status.",
)
api.add_router("", router)
api.quick["send"] = Quick(_is_plain, send_plainly)
