"""``manage.py queuepause``: stop deliveries of a queue until it is resumed."""

from __future__ import annotations

import getpass
from typing import Any

from django.utils.translation import gettext as _
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
            is_paused, is_new = queue.is_paused(), False
            text = _("%s is paused already.") if is_paused else _("%s would be paused.")
        else:
            is_paused, is_new = True, queue.pause(options["why"], by=getpass.getuser())
            text = _("%s is paused.") if is_new else _("%s was paused already; its reason stays.")
        facts = {"queue": queue.kind, "is_paused": is_paused, "was_changed": is_new}
        self.write(Outcome(text % queue.kind, facts), options["format"])
