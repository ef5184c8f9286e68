"""Reading notifications back: one, or pages of them, newest first."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from delayed_queue.notifications import queries
from delayed_queue.notifications.models import Notification, Status
from delayed_queue.notifications.services import fetch

LAST_ID: Final = uuid.UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of a page, and the one to go on from if there may be more."""

    ids: Sequence[uuid.UUID]
    next_before: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of notifications, and the id to go on from if there may be more."""

    items: Sequence[Notification]
    next_before: uuid.UUID | None


def find(id_: uuid.UUID, tenant: str | None) -> Notification | None:
    """Return the notification, if it is the tenant's; None as tenant sees all."""
    owned = {} if tenant is None else {"tenant": tenant}
    return Notification.objects.filter(pk=id_, **owned).first()


def ids_in(
    statuses: Sequence[Status], tenant: str | None, before: uuid.UUID | None, limit: int
) -> Ids:
    """Return the newest in those states that are older than ``before``; cost is by page."""
    params = {"statuses": [each.value for each in statuses], "tenant": tenant}
    return _page(queries.PAGE if tenant is None else queries.PAGE_OF_TENANT, params, before, limit)


def ids_of(recipient_hash: bytes, before: uuid.UUID | None, limit: int) -> Ids:
    """Return the newest of a recipient that are older than ``before``."""
    return _page(queries.PAGE_OF_RECIPIENT, {"recipient_hash": recipient_hash}, before, limit)


def _page(statement: Any, params: dict[str, Any], before: uuid.UUID | None, limit: int) -> Ids:
    rows = fetch(statement, params | {"before": before or LAST_ID, "limit": limit + 1})
    ids = [id_ for (id_,) in rows[:limit]]
    return Ids(ids, ids[-1] if len(rows) > limit else None)


def page(
    statuses: Sequence[Status], tenant: str | None, before: uuid.UUID | None, limit: int
) -> Page:
    """Return such a page with its notifications."""
    found = ids_in(statuses, tenant, before, limit)
    shown = Notification.objects.in_bulk(list(found.ids))
    return Page([shown[each] for each in found.ids if each in shown], found.next_before)
