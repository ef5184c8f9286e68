"""``manage.py queueresume``: a paused queue hands out its messages again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.management.arguments import DRY_RUN, FORMAT, QUEUE, add_all, add_database
from delayed_queue.management.base import QueueCommand, queue_named
from delayed_queue.management.tables import tell


class Command(QueueCommand):
    help = gettext_noop("Resume a paused queue.")

    def add_arguments(self, parser: CommandParser) -> None:
        add_all(parser, QUEUE, DRY_RUN, FORMAT)
        add_database(parser)

    def handle(self, **options: Any) -> None:
        queue = queue_named(options["queue"], options["database"])
        if options["dry_run"]:
            is_paused, is_new = queue.is_paused(), False
            said = _("%s would be resumed.") if is_paused else _("%s is not paused.")
        else:
            is_paused, is_new = False, queue.resume()
            said = _("%s is resumed.") if is_new else _("%s was not paused.")
        facts = {"queue": queue.kind, "is_paused": is_paused, "was_changed": is_new}
        tell(self.stdout, said % queue.kind, options["format"], **facts)
