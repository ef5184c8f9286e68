"""``manage.py prunenotifications``: forget what ended long ago."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.management.arguments import add_format
from delayed_queue.management.base import QueueCommand
from delayed_queue.management.tables import tell
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.sweeping import prune


class Command(QueueCommand):
    help = gettext_noop(
        "Delete ended notifications, deliveries, dedupe keys and parked requests by age."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--days", type=int, help=_("default: the setting RETENTION"))
        add_format(parser)

    def handle(self, *, days: int | None, **options: Any) -> None:
        settings = get_settings()
        age = settings.RETENTION if days is None else timedelta(days=days)
        if age < settings.DEDUPE_WINDOW:
            # A dedupe key without its notification would let each repetition through.
            raise CommandError(
                f"--days must not be below DEDUPE_WINDOW ({settings.DEDUPE_WINDOW})."
            )
        deleted = prune(age)
        text = f"notifications deleted: {deleted}"
        tell(self.stdout, text, options["format"], deleted=deleted, days=age.days)
