"""Reading notifications back: one, or pages of them, newest first."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from example_project.notifications import sql
from example_project.notifications.models import Notification, Status
from example_project.notifications.services import fetch

LAST_ID: Final = uuid.UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class Page:
    """Some notifications, and the id to go on from if there may be more."""

    items: Sequence[Notification]
    next_before: uuid.UUID | None


def find(id_: uuid.UUID, tenant: str | None) -> Notification | None:
    """Return the notification, if it is the tenant's; None as tenant sees all."""
    owned = {} if tenant is None else {"tenant": tenant}
    return Notification.objects.filter(pk=id_, **owned).first()


def page(
    statuses: Sequence[Status], tenant: str | None, before: uuid.UUID | None, limit: int
) -> Page:
    """Return the newest in those states that are older than ``before``; cost is by page."""
    params = {
        "statuses": [each.value for each in statuses],
        "tenant": tenant,
        "before": before or LAST_ID,
        "limit": limit + 1,
    }
    rows = fetch(sql.PAGE if tenant is None else sql.PAGE_OF_TENANT, params)
    ids = [id_ for (id_,) in rows[:limit]]
    found = Notification.objects.in_bulk(ids)
    return Page([found[id_] for id_ in ids if id_ in found], ids[-1] if len(rows) > limit else None)
