"""``manage.py runqueueworker``: a shell around one supervisor, or one worker, and two signals."""

from __future__ import annotations

import gc
import os
import signal
import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final

from django.conf import settings
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.conf import MAX_INTERVAL, MAX_LEASE, SETTING
from delayed_queue.exceptions import DatabaseRefused, DelayedQueueError, ResourceUnavailable
from delayed_queue.handlers import registry
from delayed_queue.management.base import QueueCommand, address, count, seconds, span
from delayed_queue.messages import MILLISECOND
from delayed_queue.worker.board import Board, Watchdog
from delayed_queue.worker.health import HealthReporter, own_place, report_on, totals_of
from delayed_queue.worker.options import MAX_COUNTS, WorkerOptions
from delayed_queue.worker.supervisor import (
    EXIT_RECYCLE,
    EXIT_REFUSED,
    EXIT_UNAVAILABLE,
    Link,
    Supervisor,
    SupervisorOptions,
    stop_when_orphaned,
)
from delayed_queue.worker.worker import Worker

# Allocations between two collections, of which a claim of 500 messages makes some 2,000.
COLLECT_AFTER: Final = 20_000

# The options that a child is given as its supervisor was.
_PASSED_ON: Final = (
    "concurrency", "async_concurrency", "batch_size", "lease", "poll_interval", "max_messages",
    "shutdown_timeout", "database",
)  # fmt: skip


class Command(QueueCommand):
    help = gettext_noop("Deliver the messages of queues to their handlers until stopped.")

    def add_arguments(self, parser: ArgumentParser) -> None:
        self._add_queues(parser)
        self._add_amounts(parser)
        self._add_ends(parser)
        self._add_surroundings(parser)

    def _add_queues(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--queue", action="append", default=[], metavar="NAME",
            help=_("a queue to work on; repeat for several, first has strict priority "
            "(default: every queue with a handler, the most overdue first and by turns)"),
        )  # fmt: skip
        parser.add_argument(
            "--topics", type=_names, metavar="A,B",
            help=_("send the callbacks of these topics only (default: of all, without --queue)"),
        )  # fmt: skip
        parser.add_argument(
            "--callbacks-only", action="store_true", help=_("work on no queue of a handler")
        )

    def _add_amounts(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--processes", type=_count("processes", 0), default=1, metavar="N",
            help=_(
                "worker processes under a supervisor (1); 0 handles in this process, unsupervised"
            ),
        )  # fmt: skip
        parser.add_argument(
            "--concurrency", type=_count("concurrency"), help=_("handler threads of a process")
        )
        parser.add_argument(
            "--async-concurrency", type=_count("async_concurrency"),
            help=_("async handlers at a time of a process"),
        )  # fmt: skip
        parser.add_argument(
            "--batch-size", type=_count("batch_size"), help=_("most messages per claim")
        )
        parser.add_argument(
            "--lease",
            type=span(MILLISECOND, MAX_LEASE),
            metavar="SECONDS",
            help=_("lease duration"),
        )
        parser.add_argument(
            "--poll-interval", type=span(MILLISECOND, MAX_INTERVAL), metavar="SECONDS",
            help=_("longest sleep between looks at an idle queue"),
        )  # fmt: skip

    def _add_ends(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--burst", action="store_true", help=_("stop as soon as nothing is due")
        )
        parser.add_argument(
            "--max-messages", type=_count("max_messages"),
            help=_("stop after that many deliveries by each process"),
        )  # fmt: skip
        parser.add_argument(
            "--shutdown-timeout", type=seconds, metavar="SECONDS",
            help=_("how long to wait for running handlers when stopped"),
        )  # fmt: skip

    def _add_surroundings(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--no-cron", action="store_false", dest="cron",
            help=_("leave the schedules to other workers or installcron"),
        )  # fmt: skip
        reload = parser.add_mutually_exclusive_group()
        reload.add_argument(
            "--reload", action="store_true", default=None,
            help=_("start the processes again when a source file changes (default with DEBUG)"),
        )  # fmt: skip
        reload.add_argument("--no-reload", action="store_false", dest="reload", help=SUPPRESS)
        parser.add_argument(
            "--health-file", type=Path, metavar="PATH",
            help=_("keep the health of the claim loops in this file, as JSON"),
        )  # fmt: skip
        parser.add_argument(
            "--health-address", type=address, metavar="HOST:PORT",
            help=_("serve the health at http://HOST:PORT/healthz, and metrics at /metrics"),
        )  # fmt: skip
        parser.add_argument("--worker-id", help=_("name in the log (default: host and pid)"))
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help=_("database alias"))
        parser.add_argument("--child", type=Link.parse, help=SUPPRESS)

    def handle(self, **options: Any) -> None:
        _demand_callbacks(options)
        chosen = _options(options)
        if options["child"] is not None:
            self._run_child(chosen, options["child"])
        elif options["processes"] == 0:
            self._run_here(chosen, options)
        else:
            self._supervise(chosen, options)

    def exit_code(self, error: DelayedQueueError) -> int:
        match error:
            case DatabaseRefused():
                return EXIT_REFUSED
            case ResourceUnavailable():
                return EXIT_UNAVAILABLE
        return super().exit_code(error)

    def _spare_the_collector(self) -> None:
        """Have Python's garbage collector look at what a batch makes once, not at every message.

        And no more at what was there before: the code of the project, which never goes away.
        """
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])

    def _run_here(self, chosen: WorkerOptions, options: dict[str, Any]) -> None:
        board = Board.private(chosen.slots)
        worker = Worker(chosen, board=board)
        place = own_place(board)
        with HealthReporter(
            lambda: report_on(worker, [place()]),
            lambda: totals_of([board.counters()]),
            file=options["health_file"], address=options["health_address"],
        ):  # fmt: skip
            _stop_on_signals(worker)
            Watchdog(board).start()
            self._greet(options, worker)
            worker.run()
        self._say(options, f"Worker {worker} stopped: {worker.counts}.")
        if worker.is_used_up:
            sys.exit(EXIT_RECYCLE)

    def _run_child(self, chosen: WorkerOptions, link: Link) -> None:
        worker = Worker(chosen, board=link.board(), process=link.index)
        self._spare_the_collector()
        _drain_on_signals(worker)
        stop_when_orphaned(worker.stop)
        worker.run()
        if worker.is_used_up:
            sys.exit(EXIT_RECYCLE)

    def _supervise(self, chosen: WorkerOptions, options: dict[str, Any]) -> None:
        # Made and thrown away: what is wrong with it is said once, here.
        self._greet(options, Worker(chosen))
        supervisor = Supervisor(_supervision(chosen, options))
        with HealthReporter(
            lambda: report_on(supervisor, supervisor.places()),
            supervisor.totals,
            file=options["health_file"], address=options["health_address"],
        ):  # fmt: skip
            supervisor.listen_to_signals()
            code = supervisor.run()
        self._say(options, f"Worker {supervisor} stopped: {supervisor.counts}.")
        if code:
            sys.exit(code)

    def _greet(self, options: dict[str, Any], worker: Worker) -> None:
        processes = options["processes"]
        by = f" with {processes} processes" if processes > 1 else ""
        self._say(
            options,
            f"Worker {worker} serves {', '.join(worker.serves)}{by}. Ctrl-C stops it.",
        )

    def _say(self, options: dict[str, Any], text: str) -> None:
        if options["verbosity"] > 0:
            self.stdout.write(text)
            self.stdout.flush()


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _count(name: str, least: int = 1) -> Callable[[str], int]:
    return count(least, MAX_COUNTS[name])


def _demand_callbacks(options: dict[str, Any]) -> None:
    """Refuse to be told which callbacks to send where none are sent at all."""
    if (options["topics"] or options["callbacks_only"]) and not registry.sources:
        raise CommandError(
            "Callbacks are off, so there are none to send for --topics or --callbacks-only. "
            f"Set {SETTING}['CALLBACKS']['ENABLED'] to True."
        )


def _options(options: dict[str, Any]) -> WorkerOptions:
    """Return the options given; those not given keep the defaults of the settings."""
    given = {
        "queues": tuple(options["queue"]),
        "burst": options["burst"],
        "cron": options["cron"],
        "using": options["database"],
        "concurrency": options["concurrency"],
        "async_concurrency": options["async_concurrency"],
        "batch_size": options["batch_size"],
        "lease": options["lease"],
        "poll_interval": options["poll_interval"],
        "max_messages": options["max_messages"],
        "shutdown_timeout": options["shutdown_timeout"],
        "worker_id": options["worker_id"],
        "sourced": options["topics"],
        "only_sourced": options["callbacks_only"],
        "processes": options["processes"],
    }
    return WorkerOptions(**{name: value for name, value in given.items() if value is not None})


def _supervision(chosen: WorkerOptions, options: dict[str, Any]) -> SupervisorOptions:
    is_finite = chosen.burst or chosen.max_messages is not None
    reload = options["reload"]
    return SupervisorOptions(
        processes=chosen.processes,
        arguments=_arguments_of_child(chosen, options),
        slots=chosen.slots,
        using=chosen.using,
        shutdown_timeout=chosen.shutdown_timeout,
        ends=is_finite,
        reload=settings.DEBUG and not is_finite if reload is None else reload,
        worker_id=chosen.worker_id,
    )


def _arguments_of_child(chosen: WorkerOptions, options: dict[str, Any]) -> list[str]:
    """Return the command line of a child: what ours says, in full."""
    arguments = ["runqueueworker", "--verbosity", str(options["verbosity"])]
    for queue in chosen.queues:
        arguments += ["--queue", queue]
    arguments += _of_sources(chosen)
    for name in _PASSED_ON:
        value = options[name]
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if value is not None:
            arguments += ["--" + name.replace("_", "-"), str(value)]
    if chosen.burst:
        arguments.append("--burst")
    if not chosen.cron:
        arguments.append("--no-cron")
    return [*arguments, "--worker-id", chosen.worker_id]


def _of_sources(chosen: WorkerOptions) -> list[str]:
    arguments = ["--callbacks-only"] if chosen.only_sourced else []
    if chosen.sourced is not None:
        arguments += ["--topics", ",".join(chosen.sourced)]
    return arguments


def _drain_on_signals(worker: Worker) -> None:
    """Drain, however often it is asked for: a process manager may signal child and supervisor.

    Whoever wants to end it at once tells the supervisor twice.
    """
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, frame: worker.stop())


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
