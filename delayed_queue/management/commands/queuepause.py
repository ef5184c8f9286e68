"""``manage.py queuepause``: a queue hands out no message until it is resumed."""

from __future__ import annotations

import getpass
from argparse import ArgumentParser
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.management.base import QueueCommand, queue_named


class Command(QueueCommand):
    help = "Hand out no message of a queue until queueresume, in any process, at once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("queue", help="a queue, or a kind as name|codec")
        parser.add_argument("--why", default="", metavar="TEXT", help="shown beside the queue")
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="database alias")

    def handle(self, **options: Any) -> None:
        queue = queue_named(options["queue"], options["database"])
        is_new = queue.pause(options["why"], by=getpass.getuser())
        said = "is paused." if is_new else "was paused already; its reason stays."
        self.stdout.write(f"{queue.kind} {said}")
