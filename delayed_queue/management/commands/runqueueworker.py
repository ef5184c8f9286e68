"""``manage.py runqueueworker``: a shell around one Worker and two signals."""

from __future__ import annotations

import os
import signal
from argparse import ArgumentParser
from datetime import timedelta
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS

from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.workers import Worker, WorkerOptions


class Command(BaseCommand):
    help = "Deliver the messages of queues to their handlers until stopped."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--queue", action="append", default=[], metavar="NAME",
            help="a queue to work on; repeat for several, first has priority "
            "(default: every queue with a handler)",
        )  # fmt: skip
        parser.add_argument("--concurrency", type=int, help="handler threads")
        parser.add_argument("--batch-size", type=int, help="most messages per claim")
        parser.add_argument("--lease", type=_seconds, metavar="SECONDS", help="lease duration")
        parser.add_argument(
            "--poll-interval", type=_seconds, metavar="SECONDS",
            help="longest sleep between looks at an idle queue",
        )  # fmt: skip
        parser.add_argument("--burst", action="store_true", help="stop as soon as nothing is due")
        parser.add_argument("--max-messages", type=int, help="stop after that many deliveries")
        parser.add_argument(
            "--shutdown-timeout", type=_seconds, metavar="SECONDS",
            help="how long to wait for running handlers when stopped",
        )  # fmt: skip
        parser.add_argument(
            "--no-cron", action="store_false", dest="cron",
            help="leave the schedules to other workers or installcron",
        )  # fmt: skip
        parser.add_argument("--worker-id", help="name in the log (default: host and pid)")
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="database alias")

    def handle(self, **options: Any) -> None:
        try:
            worker = Worker(_options(options))
        except DelayedQueueError as error:
            raise CommandError(str(error)) from error
        _stop_on_signals(worker)
        self._say(options, f"Worker {worker} serves {', '.join(worker.queues)}. Ctrl-C stops it.")
        tally = worker.run()
        self._say(
            options,
            f"Worker {worker} stopped: {tally.done} done, {tally.failed} to be retried, "
            f"{tally.snoozed} snoozed, {tally.dead} dead, {tally.lost} lost their lease.",
        )

    def _say(self, options: dict[str, Any], text: str) -> None:
        if options["verbosity"] > 0:
            self.stdout.write(text)
            self.stdout.flush()


def _seconds(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a number of seconds") from error


def _options(options: dict[str, Any]) -> WorkerOptions:
    """Return the options given; those not given keep the defaults of the settings."""
    given = {
        "queues": tuple(options["queue"]),
        "burst": options["burst"],
        "cron": options["cron"],
        "using": options["database"],
        "concurrency": options["concurrency"],
        "batch_size": options["batch_size"],
        "lease": options["lease"],
        "poll_interval": options["poll_interval"],
        "max_messages": options["max_messages"],
        "shutdown_timeout": options["shutdown_timeout"],
        "worker_id": options["worker_id"],
    }
    return WorkerOptions(**{name: value for name, value in given.items() if value is not None})


def _stop_on_signals(worker: Worker) -> None:
    """The first SIGTERM or SIGINT drains; the second ends the process where it stands."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, _exit_now)
        worker.stop()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)


def _exit_now(number: int, frame: FrameType | None) -> None:
    # Not sys.exit(): that would wait for handlers, and the leases are safe with the database.
    os._exit(128 + number)
