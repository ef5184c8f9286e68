"""``manage.py rehashsuppressions``: suppressions of international domains by IDNA 2008."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext_noop

from delayed_queue.management.arguments import add_format
from delayed_queue.management.base import QueueCommand
from delayed_queue.management.tables import tell
from delayed_queue.notifications.managing import rehash_suppressions


class Command(QueueCommand):
    help = gettext_noop(
        "Copy suppressions of international domains to their IDNA 2008 form, where the address is "
        "known."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_format(parser)

    def handle(self, **options: Any) -> None:
        added = rehash_suppressions()
        tell(self.stdout, f"suppressions added: {added}", options["format"], added=added)
