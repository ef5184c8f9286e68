"""``manage.py queueresume``: a paused queue hands out its messages again."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.db import DEFAULT_DB_ALIAS
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.management.base import QueueCommand, queue_named
from delayed_queue.management.tables import add_format, tell


class Command(QueueCommand):
    help = gettext_noop("Hand out the messages of a paused queue again.")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("queue", help=_("a queue, or a kind as name|codec"))
        parser.add_argument("--dry-run", action="store_true", help=_("only say what would change"))
        add_format(parser)
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help=_("database alias"))

    def handle(self, **options: Any) -> None:
        queue = queue_named(options["queue"], options["database"])
        if options["dry_run"]:
            is_paused, is_new = queue.is_paused(), False
            said = "would hand out its messages again." if is_paused else "is not paused."
        else:
            is_paused, is_new = False, queue.resume()
            said = "hands out its messages again." if is_new else "was not paused."
        facts = {"queue": queue.kind, "is_paused": is_paused, "was_changed": is_new}
        tell(self.stdout, f"{queue.kind} {said}", options["format"], **facts)
