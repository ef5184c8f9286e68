"""``manage.py consumenotifications``: take requests from the broker until stopped."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from delayed_queue.notifications.broker import Consumer


class Command(BaseCommand):
    help = "Take notification requests from the broker, store them, then acknowledge them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--queue", default="", help="the broker's queue")
        parser.add_argument("--tenant", default="", help="whose notifications they are")
        parser.add_argument("--batch-size", type=int, help="most messages per transaction")

    def handle(self, *, queue: str, tenant: str, batch_size: int | None, **options: Any) -> None:
        """Consume; the first SIGTERM or SIGINT ends it after the batch in flight."""
        try:
            consumer = Consumer(queue=queue, tenant=tenant, batch=batch_size)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        if consumer.url.startswith("memory:"):
            self.stderr.write("memory:// has the messages of this process alone: set AMQP_URL.")
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: consumer.stop())
        consumer.run()
        tally = consumer.tally
        self.stdout.write(
            f"accepted {tally.accepted}, duplicates {tally.duplicates}, parked {tally.parked}"
        )
