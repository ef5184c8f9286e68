"""Operations of callers and operators: read, cancel, retry, suppress."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final, LiteralString

from django.db import transaction
from django.db.models.functions import Now

from delayed_queue.db.resilience import never, repeat
from delayed_queue.db.sql import Page, column_of, page_of
from delayed_queue.notifications.models import CONTENTS, Notification, Status, Suppression
from delayed_queue.notifications.recipients import recipient_hash
from delayed_queue.notifications.services import USING, fetch, queue_of
from delayed_queue.notifications.settling import CALLBACKS
from delayed_queue.queue.base import nothing

# Cancel a waiting notification; one that is PROCESSING may have reached the provider. A doubt about
# an earlier call remains. Reads: the primary key.
CANCEL: Final[LiteralString] = (
    """
WITH ended AS (
    UPDATE delayed_queue_notification
    SET
        status = 'CANCELLED',
        ended_at = clock_timestamp(),
        outcome = %(reason)s || CASE WHEN outcome = 'in doubt' THEN ', in doubt' ELSE '' END
    WHERE id = %(id)s::uuid
        AND status = 'ENQUEUED'
    RETURNING id, status, callback_url, priority, channel
)"""
    + CALLBACKS
    + """
SELECT priority, channel
FROM ended
"""
)

LAST_ID: Final = uuid.UUID(int=2**128 - 1)

# The newest notifications in some states, older than a given id. One index scan per state, each of
# at most a page. Rows are compared instead of columns: with "=" the planner may scan the primary
# key from end to end in search of a rare state.
_NEWEST: Final[LiteralString] = """
SELECT id
FROM unnest(%(statuses)s::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT n.id
    FROM delayed_queue_notification AS n
    WHERE ({columns}, n.id) < ({values}, %(before)s::uuid)
        AND ({columns}) >= ({values})
    ORDER BY {order}, n.id DESC
    LIMIT %(limit)s
) AS newest
ORDER BY id DESC
LIMIT %(limit)s
"""
# One page of a tenant. Reads: notification_tenant.
PAGE_OF_TENANT: Final[LiteralString] = _NEWEST.format(
    columns="n.tenant, n.status",
    values="%(tenant)s, wanted.status",
    order="n.tenant DESC, n.status DESC",
)
# One page over all tenants. Reads: notification_status_id.
PAGE: Final[LiteralString] = _NEWEST.format(
    columns="n.status", values="wanted.status", order="n.status DESC"
)


def find(id_: uuid.UUID, tenant: str | None) -> Notification | None:
    """Return the notification if it belongs to the tenant; None stands for all tenants."""
    owned = {} if tenant is None else {"tenant": tenant}
    return repeat(USING, Notification.objects.defer(*CONTENTS).filter(pk=id_, **owned).first)


def page(
    statuses: Sequence[Status], tenant: str | None, before: uuid.UUID | None, limit: int
) -> Page[Notification, uuid.UUID]:
    """Return the newest in those states that are older than ``before``; cost is by page."""
    params = {
        "statuses": [each.value for each in statuses], "tenant": tenant,
        "before": before or LAST_ID, "limit": limit + 1,
    }  # fmt: skip
    rows = repeat(USING, partial(fetch, PAGE if tenant is None else PAGE_OF_TENANT, params))
    found = page_of(column_of(rows), limit, lambda id_: id_)
    shown = repeat(USING, partial(Notification.objects.defer(*CONTENTS).in_bulk, list(found.items)))
    return Page([shown[each] for each in found.items if each in shown], found.next)


def cancel(id_: uuid.UUID, reason: str = "cancelled") -> bool:
    """Cancel a waiting notification, and drop its message; False in any other state.

    Raises OutcomeUnknown if the connection was lost and it no longer waits.
    """
    return repeat(USING, partial(_cancel, id_, reason), doubt=nothing)


@transaction.atomic(using=USING)
def _cancel(id_: uuid.UUID, reason: str) -> bool:
    rows = fetch(CANCEL, {"id": id_, "reason": reason})
    for priority, channel in rows:
        queue_of(priority, channel).drop_message(str(id_))
    return bool(rows)


def retry(id_: uuid.UUID, *, even_in_doubt: bool = True) -> bool:
    """Queue a failed notification again; False in any other state, or after its expiry.

    A notification in doubt may then be sent twice; ``even_in_doubt=False`` skips it. Raises
    OutcomeUnknown if the connection was lost and it is no longer failed.
    """
    return repeat(USING, partial(_retry, id_, even_in_doubt), doubt=nothing)


@transaction.atomic(using=USING)
def _retry(id_: uuid.UUID, even_in_doubt: bool) -> bool:
    rows = Notification.objects.defer(*CONTENTS).select_for_update()
    row = rows.filter(pk=id_, status=Status.FAILED).exclude(expires_at__lte=Now()).first()
    if row is None or (row.is_in_doubt and not even_in_doubt):
        return False
    row.status, row.ended_at, row.outcome, row.error_class = Status.ENQUEUED, None, "", ""
    row.save(update_fields=["status", "ended_at", "outcome", "error_class"])
    queue_of(row.priority, row.channel).offer_or_update(str(id_), None)
    return True


def suppress(
    channel: str, recipient: str, category: str = "", reason: str = Suppression.Reason.OPT_OUT
) -> Suppression:
    """Send nothing more to the recipient: in a category, or with an empty one at all."""
    keep = partial(
        Suppression.objects.update_or_create,
        channel=channel,
        recipient_hash=recipient_hash(channel, recipient),
        category=category,
        defaults={"reason": reason},
    )
    kept, _ = repeat(USING, keep, doubt=never)
    return kept


def suppress_once(
    channel: str, hashed: bytes, category: str = "", reason: str = Suppression.Reason.OPT_OUT
) -> None:
    """Suppress a recipient, by its hash; an existing suppression keeps its reason."""
    row = Suppression(channel=channel, recipient_hash=hashed, category=category, reason=reason)
    keep = partial(Suppression.objects.bulk_create, [row], ignore_conflicts=True)
    repeat(USING, keep, doubt=never)


def lift(channel: str, recipient: str, category: str = "") -> bool:
    """Send to the recipient again; return whether there was a suppression."""
    found = Suppression.objects.filter(
        channel=channel, recipient_hash=recipient_hash(channel, recipient), category=category
    )
    return bool(repeat(USING, lambda: found.delete()[0], doubt=nothing))


def as_id(text: str) -> uuid.UUID | None:
    """Return the text as an id, or None."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
