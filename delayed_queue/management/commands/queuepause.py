"""``manage.py queuepause``: stop deliveries of a queue until it is resumed."""

from __future__ import annotations

import getpass
from typing import Any

from django.utils.translation import gettext_noop

from delayed_queue.management.arguments import DRY_RUN, FORMAT, QUEUE, WHY
from delayed_queue.management.base import Outcome, QueueCommand, queue_of


class Command(QueueCommand):
    help = gettext_noop(
        "Pause a queue: no process gets a message of it until queueresume. Takes effect at once."
    )
    arguments = (QUEUE, DRY_RUN, FORMAT, WHY)

    def handle(self, **options: Any) -> None:
        queue = queue_of(options)
        if options["dry_run"]:
            is_paused = queue.is_paused()
            was_changed, text = False, "is paused already" if is_paused else "would be paused"
        else:
            was_changed = queue.pause(options["why"], by=getpass.getuser())
            text = "is paused" if was_changed else "was paused already; its reason stays"
        facts = {"queue": queue.kind, "was_changed": was_changed}
        self.write(Outcome(f"{queue.kind} {text}.", facts), options["format"])
