"""``manage.py queueresume``: resume deliveries of a paused queue."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.management.arguments import DRY_RUN, FORMAT, QUEUE
from delayed_queue.management.base import Outcome, QueueCommand, queue_of


class Command(QueueCommand):
    help = gettext_noop("Resume a paused queue.")
    arguments = (QUEUE, DRY_RUN, FORMAT)

    def handle(self, **options: Any) -> None:
        queue = queue_of(options)
        if options["dry_run"]:
            is_paused, is_new = queue.is_paused(), False
            text = _("%s would be resumed.") if is_paused else _("%s is not paused.")
        else:
            is_paused, is_new = False, queue.resume()
            text = _("%s is resumed.") if is_new else _("%s was not paused.")
        facts = {"queue": queue.kind, "is_paused": is_paused, "was_changed": is_new}
        self.write(Outcome(text % queue.kind, facts), options["format"])
