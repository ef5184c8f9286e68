"""``manage.py queueresume``: a paused queue hands out its messages again."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.management.base import QueueCommand, queue_named


class Command(QueueCommand):
    help = "Hand out the messages of a paused queue again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("queue", help="a queue, or a kind as name|codec")
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="database alias")

    def handle(self, **options: Any) -> None:
        queue = queue_named(options["queue"], options["database"])
        said = "hands out its messages again." if queue.resume() else "was not paused."
        self.stdout.write(f"{queue.kind} {said}")
