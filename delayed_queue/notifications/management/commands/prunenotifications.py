"""``manage.py prunenotifications``: forget what ended long ago."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from delayed_queue.durations import LONGEST, write_duration
from delayed_queue.management.arguments import FORMAT, duration
from delayed_queue.management.base import Outcome, QueueCommand
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.sweeping import prune


class Command(QueueCommand):
    help = gettext_noop(
        "Delete ended notifications, deliveries, dedupe keys and parked requests by age."
    )
    arguments = (
        duration("--older-than", _("age, for example 90d (default: RETENTION)"), most=LONGEST),
        FORMAT,
    )

    def handle(self, *, older_than: timedelta | None, **options: Any) -> None:
        settings = get_settings()
        age = settings.RETENTION if older_than is None else older_than
        if age < settings.DEDUPE_WINDOW:
            # A dedupe key without its notification would let each repetition through.
            raise CommandError(
                f"--older-than must not be below DEDUPE_WINDOW ({settings.DEDUPE_WINDOW})."
            )
        deleted = prune(age)
        facts = {"deleted": deleted, "older_than": write_duration(age)}
        self.write(Outcome(f"notifications deleted: {deleted}", facts), options["format"])
