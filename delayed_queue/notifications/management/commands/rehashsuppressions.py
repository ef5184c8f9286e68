"""``manage.py rehashsuppressions``: suppressions of international domains by IDNA 2008."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext_noop

from delayed_queue.management.arguments import FORMAT
from delayed_queue.management.base import Outcome, QueueCommand
from delayed_queue.notifications.models import Channel, Notification, Suppression
from delayed_queue.notifications.recipients import hash_by_idna_2003, hash_of, normal
from delayed_queue.notifications.services import USING


class Command(QueueCommand):
    help = gettext_noop(
        "Copy suppressions of international domains to their IDNA 2008 form, where the address is "
        "known."
    )

    arguments = (FORMAT,)

    def handle(self, **options: Any) -> None:
        added = rehash_suppressions()
        text = f"suppressions added: {added}"
        self.write(Outcome(text, {"added": added}), options["format"])


def rehash_suppressions() -> int:
    """Copy suppressions to the IDNA 2008 form of known addresses; return how many.

    Earlier hashes are by IDNA 2003. They stay, because they may belong to the other domain.
    """
    added = 0
    rows = Notification.objects.filter(channel=Channel.EMAIL, recipient__regex="@.*[^ -~]")
    for recipient in rows.values_list("recipient", flat=True).distinct().iterator():
        address = normal(Channel.EMAIL, recipient)
        old, new = hash_by_idna_2003(recipient), hash_of(Channel.EMAIL, address)
        with transaction.atomic(using=USING):
            rows.filter(recipient=recipient).update(recipient=address, recipient_hash=new)
            found = Suppression.objects.filter(channel=Channel.EMAIL, recipient_hash=old)
            added += _copy(found, new) if old != new else 0
    return added


def _copy(found: QuerySet[Suppression], recipient_hash: bytes) -> int:
    rows = [(each.category, {"reason": each.reason}) for each in found]
    key = {"channel": Channel.EMAIL, "recipient_hash": recipient_hash}
    keep = Suppression.objects.get_or_create
    return sum(keep(**key, category=each, defaults=more)[1] for each, more in rows)
