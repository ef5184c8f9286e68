"""``manage.py queuepause``: a queue hands out no message until it is resumed."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.management.arguments import DRY_RUN, FORMAT, QUEUE, WHY, add_all, add_database
from delayed_queue.management.base import QueueCommand, queue_named
from delayed_queue.management.tables import tell


class Command(QueueCommand):
    help = gettext_noop(
        "Pause a queue: no process gets a message of it until queueresume. Takes effect at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_all(parser, QUEUE, DRY_RUN, FORMAT, WHY)
        add_database(parser)

    def handle(self, **options: Any) -> None:
        queue = queue_named(options["queue"], options["database"])
        if options["dry_run"]:
            is_paused, is_new = queue.is_paused(), False
            said = _("%s is paused already.") if is_paused else _("%s would be paused.")
        else:
            is_paused, is_new = True, queue.pause(options["why"], by=getpass.getuser())
            said = _("%s is paused.") if is_new else _("%s was paused already; its reason stays.")
        facts = {"queue": queue.kind, "is_paused": is_paused, "was_changed": is_new}
        tell(self.stdout, said % queue.kind, options["format"], **facts)
