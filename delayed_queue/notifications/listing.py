"""Reading notifications back: one, or pages of them, newest first."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final, LiteralString

from delayed_queue.db.rows import Page, column_of, page_of
from delayed_queue.notifications.models import Notification, Status
from delayed_queue.notifications.services import fetch

LAST_ID: Final = uuid.UUID(int=2**128 - 1)

# The newest notifications of a tenant in some states, older than a given id. One look at the index
# for each state, each of at most a page. Rows are compared, not columns one by one: to a state
# that is given with "=" the planner owes no order, and it may walk the primary key from end to end
# in search of a rare one. Reads: notification_tenant.
PAGE_OF_TENANT: Final[LiteralString] = """
SELECT id
FROM unnest(%(statuses)s::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT n.id
    FROM delayed_queue_notification AS n
    WHERE (n.tenant, n.status, n.id) < (%(tenant)s, wanted.status, %(before)s::uuid)
        AND (n.tenant, n.status) >= (%(tenant)s, wanted.status)
    ORDER BY n.tenant DESC, n.status DESC, n.id DESC
    LIMIT %(limit)s
) AS newest
ORDER BY id DESC
LIMIT %(limit)s
"""

# The same, of all tenants. Reads: notification_status_id.
PAGE: Final[LiteralString] = """
SELECT id
FROM unnest(%(statuses)s::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT n.id
    FROM delayed_queue_notification AS n
    WHERE (n.status, n.id) < (wanted.status, %(before)s::uuid)
        AND n.status >= wanted.status
    ORDER BY n.status DESC, n.id DESC
    LIMIT %(limit)s
) AS newest
ORDER BY id DESC
LIMIT %(limit)s
"""

# The newest notifications of one recipient, older than a given id; as above, the order keeps the
# primary key out of it. Reads: notification_recipient.
PAGE_OF_RECIPIENT: Final[LiteralString] = """
SELECT id
FROM delayed_queue_notification
WHERE (recipient_hash, id) < (%(recipient_hash)s, %(before)s::uuid)
    AND recipient_hash >= %(recipient_hash)s
ORDER BY recipient_hash DESC, id DESC
LIMIT %(limit)s
"""


Ids = Page[uuid.UUID, uuid.UUID]


def find(id_: uuid.UUID, tenant: str | None) -> Notification | None:
    """Return the notification, if it is the tenant's; None as tenant sees all."""
    owned = {} if tenant is None else {"tenant": tenant}
    return Notification.objects.filter(pk=id_, **owned).first()


def ids_in(
    statuses: Sequence[Status], tenant: str | None, before: uuid.UUID | None, limit: int
) -> Ids:
    """Return the newest in those states that are older than ``before``; cost is by page."""
    params = {"statuses": [each.value for each in statuses], "tenant": tenant}
    statement = PAGE if tenant is None else PAGE_OF_TENANT
    return _page(statement, params, before, limit)


def ids_of(recipient_hash: bytes, before: uuid.UUID | None, limit: int) -> Ids:
    """Return the newest of a recipient that are older than ``before``."""
    return _page(PAGE_OF_RECIPIENT, {"recipient_hash": recipient_hash}, before, limit)


def _page(statement: Any, params: dict[str, Any], before: uuid.UUID | None, limit: int) -> Ids:
    rows = fetch(statement, params | {"before": before or LAST_ID, "limit": limit + 1})
    return page_of(column_of(rows), limit, lambda id_: id_)


def page(
    statuses: Sequence[Status], tenant: str | None, before: uuid.UUID | None, limit: int
) -> Page[Notification, uuid.UUID]:
    """Return such a page with its notifications."""
    found = ids_in(statuses, tenant, before, limit)
    shown = Notification.objects.in_bulk(list(found.items))
    return Page([shown[each] for each in found.items if each in shown], found.next)
