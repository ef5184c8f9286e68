"""``manage.py queueresume``: resume deliveries of a paused queue."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_noop

from delayed_queue.management.arguments import DRY_RUN, FORMAT, QUEUE
from delayed_queue.management.base import Outcome, QueueCommand, queue_of


class Command(QueueCommand):
    help = gettext_noop("Resume a paused queue.")
    arguments = (QUEUE, DRY_RUN, FORMAT)

    def handle(self, **options: Any) -> None:
        queue = queue_of(options)
        if options["dry_run"]:
            was_changed, text = False, "would be resumed" if queue.is_paused() else "is not paused"
        else:
            was_changed = queue.resume()
            text = "is resumed" if was_changed else "was not paused"
        facts = {"queue": queue.kind, "was_changed": was_changed}
        self.write(Outcome(f"{queue.kind} {text}.", facts), options["format"])
