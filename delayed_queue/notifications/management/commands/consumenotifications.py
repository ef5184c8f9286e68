"""``manage.py consumenotifications``: take requests from the broker until stopped."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.conf import get_settings
from delayed_queue.management.base import QueueCommand
from delayed_queue.notifications.broker import BATCH, Consumer
from delayed_queue.worker.deadlines import LAST_EXIT_SECONDS, last_exit, stop_on_signals


class Command(QueueCommand):
    help = gettext_noop(
        "Take notification requests from the broker, store them, then acknowledge them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--queue", default="", help=_("the broker's queue"))
        parser.add_argument("--tenant", default="", help=_("the tenant of the notifications"))
        parser.add_argument(
            "--batch-size", type=int, default=BATCH, help=_("maximum messages per transaction")
        )

    def handle(self, *, queue: str, tenant: str, batch_size: int, **options: Any) -> None:
        """Consume; the first SIGTERM or SIGINT ends it after the batch, the second at once."""
        try:
            consumer = Consumer(queue=queue, tenant=tenant, batch=batch_size)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        if consumer.url.startswith("memory:"):
            self.stderr.write("memory:// holds messages of this process only. Set AMQP_URL.")
        seconds = get_settings().SHUTDOWN_TIMEOUT.total_seconds() + LAST_EXIT_SECONDS
        with last_exit(seconds) as arm:
            # The broker delivers again what was not acknowledged.
            stop_on_signals(arm, consumer.stop)
            consumer.run()
        tally = consumer.tally
        self.stdout.write(
            f"accepted {tally.accepted}, duplicates {tally.duplicates}, parked {tally.parked}"
        )
