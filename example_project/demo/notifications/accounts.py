"""What an operator sets up before the act, and what of it and of earlier runs is deleted."""

from __future__ import annotations

from typing import Final

from django.db import transaction

from delayed_queue.models import ApiToken, DeadLetter, Message
from delayed_queue.tokens import create_token
from example_project.demo.notifications.broker import QUEUE
from example_project.demo.notifications.figures import KINDS, OURS
from example_project.demo.notifications.traffic import REST_TENANT
from example_project.notifications.api import TOPIC
from example_project.notifications.models import (
    DedupeClaim,
    Delivery,
    Notification,
    ParkedRequest,
)

CHUNK: Final = 5000


@transaction.atomic
def clear() -> None:
    """Delete the notifications of the demo's tenants, with all that belongs to them."""
    ours = Notification.objects.filter(tenant__in=OURS)
    ids = list(ours.values_list("id", flat=True))
    for start in range(0, len(ids), CHUNK):
        keys = [str(each) for each in ids[start : start + CHUNK]]
        Message.objects.filter(kind__in=KINDS, key__in=keys).delete()
        DeadLetter.objects.filter(kind__in=KINDS, key__in=keys).delete()
    Delivery.objects.filter(notification__tenant__in=OURS).delete()
    ours.delete()
    DedupeClaim.objects.filter(tenant__in=OURS).delete()
    ParkedRequest.objects.filter(origin=QUEUE).delete()
    ApiToken.objects.filter(name=REST_TENANT).delete()


def set_up_token() -> str:
    """Return a token that may ask for notifications and cancel them."""
    return create_token(REST_TENANT, verbs=["add", "read", "delete"], topics=[TOPIC])
