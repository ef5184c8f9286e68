"""``manage.py runqueueworker``: a shell around one supervisor, or one worker, and two signals."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from django.conf import settings
from django.core.management.base import CommandError
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from delayed_queue.conf import MAX_INTERVAL, MAX_LEASE, SETTING
from delayed_queue.db.own import pool_size
from delayed_queue.db.silence import limit_silence
from delayed_queue.exceptions import DatabaseRefused, DelayedQueueError, ResourceUnavailable
from delayed_queue.handlers import registry
from delayed_queue.logs import log
from delayed_queue.management.arguments import (
    add_all,
    add_database,
    address,
    arg,
    count,
    flag,
    seconds,
    span,
)
from delayed_queue.management.base import QueueCommand
from delayed_queue.messages import MILLISECOND
from delayed_queue.worker.board import Board, Watchdog
from delayed_queue.worker.deadlines import LAST_EXIT_SECONDS, SUPERVISOR_EXIT_SECONDS, last_exit
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import MAX_COUNTS, WorkerOptions
from delayed_queue.worker.process.health import (
    HealthReporter,
    Place,
    measure_if_served,
    report_on,
    sharing_metrics,
)
from delayed_queue.worker.process.inheritance import Connection, disown, open_connections
from delayed_queue.worker.process.reloading import Reloader
from delayed_queue.worker.process.supervisor import (
    EXIT_RECYCLE,
    EXIT_REFUSED,
    EXIT_UNAVAILABLE,
    Child,
    Supervisor,
    SupervisorOptions,
    stop_when_orphaned,
)

# Allocations between two collections, of which a claim of 500 messages makes some 2,000.
COLLECT_AFTER: Final = 20_000


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _count(name: str, least: int = 1) -> Callable[[str], int]:
    return count(least, MAX_COUNTS[name])


_ARGUMENTS: Final = (
    arg("--queue", _(
        "a queue to serve; repeat for several, the first has strict priority "
        "(default: every queue with a handler, most overdue first, in turns)"),
        action="append", default=[], metavar="NAME"),
    arg("--topics", _(
        "send callbacks of these topics only (default: of all topics, unless --queue is given)"),
        type=_names, metavar="A,B"),
    flag("--callbacks-only", _("send callbacks only; serve no queue that has a handler")),
    arg("--processes", _(
        "worker processes under a supervisor (1); with 0 this process runs "
        "the handlers, unsupervised"), type=_count("processes", 0), default=1, metavar="N"),
    arg("--concurrency", _("handler threads per process"), type=_count("concurrency")),
    arg("--async-concurrency", _("async handlers at a time, per process"),
        type=_count("async_concurrency")),
    arg("--batch-size", _("maximum messages per claim"), type=_count("batch_size")),
    arg("--claims", _(
        "claims at a time per process while batches are full, 1 or 2 (2; with one thread 1)"),
        type=_count("claims")),
    arg("--lease", _("lease duration"), type=span(MILLISECOND, MAX_LEASE), metavar="SECONDS"),
    arg("--poll-interval", _("maximum time between polls of an idle queue"),
        type=span(MILLISECOND, MAX_INTERVAL), metavar="SECONDS"),
    flag("--burst", _("stop as soon as nothing is due")),
    arg("--max-messages", _("stop after this many deliveries per process"),
        type=_count("max_messages")),
    arg("--shutdown-timeout", _("maximum wait for running handlers when stopped"),
        type=seconds, metavar="SECONDS"),
    arg("--no-cron", _("leave the schedules to other workers or installcron"),
        action="store_false", dest="cron"),
    # Set by --reload in the process that it restarts: stop when its input ends.
    arg("--reloaded", SUPPRESS, action="store_true"),
    arg("--health-file", _("write the health of the claim loops to this file, as JSON"),
        type=Path, metavar="PATH"),
    arg("--health-address", _(
        "serve health at http://HOST:PORT/healthz and metrics at /metrics"),
        type=address, metavar="HOST:PORT"),
    arg("--worker-id", _("name in the log (default: host and pid)")),
)  # fmt: skip


class Command(QueueCommand):
    help = gettext_noop("Deliver the messages of queues to their handlers until stopped.")

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_all(parser, *_ARGUMENTS)
        reload = parser.add_mutually_exclusive_group()
        reload.add_argument(
            "--reload", action="store_true", default=None,
            help=str(_("restart the processes when a source file changes (default with DEBUG)")),
        )  # fmt: skip
        reload.add_argument("--no-reload", action="store_false", dest="reload", help=SUPPRESS)
        add_database(parser)

    def handle(self, **options: Any) -> None:
        _demand_callbacks(options)
        chosen = _options(options)
        if (size := pool_size(chosen.using)) is not None and size < chosen.pooled_connections:
            needed = chosen.pooled_connections
            log(logging.WARNING, "pool_too_small", size=size, needed=needed)
        measure_if_served(options["health_address"])
        if options["processes"] == 0:
            self._run_here(chosen, options)
        elif _is_reloading(chosen, options):
            sys.exit(Reloader([sys.executable, *sys.orig_argv[1:], "--reloaded"]).run())
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
        limit_silence(chosen.using)
        board = Board.new(chosen.slots)
        worker = Worker(chosen, board=board)
        place = Place(0, board, os.getpid(), time.monotonic())
        with HealthReporter(
            lambda: report_on(worker, [place]), lambda: worker.counts,
            file=options["health_file"], address=options["health_address"],
        ), last_exit(_longest(chosen, LAST_EXIT_SECONDS)) as arm:  # fmt: skip
            _stop_on_signals(worker, arm)
            Watchdog(board).exit_when_stuck()
            self._greet(options, worker)
            worker.run()
        self._say(options, f"Worker {worker} stopped: {worker.counts}.")
        if worker.is_used_up:
            sys.exit(EXIT_RECYCLE)

    def _work(
        self, chosen: WorkerOptions, inherited: list[Connection], child: Child, lifeline: int
    ) -> int:
        """Be one of the supervisor's processes; return the exit code."""
        limit_silence(chosen.using)
        disown(inherited)
        worker = Worker(chosen, board=child.board, process=child.index)
        try:
            with (
                self.answering(chosen.using),
                last_exit(_longest(chosen, LAST_EXIT_SECONDS)) as arm,
            ):
                _drain_on_signals(worker, arm)
                stop_when_orphaned(partial(_stop, worker, arm), lifeline)
                worker.run()
        except CommandError as error:
            self.stderr.write(f"{type(error).__name__}: {error}")
            return error.returncode
        return EXIT_RECYCLE if worker.is_used_up else 0

    def _supervise(self, chosen: WorkerOptions, options: dict[str, Any]) -> None:
        # Made and thrown away: what is wrong with it is said once, here.
        self._greet(options, Worker(chosen))
        inherited = open_connections()
        self._spare_the_collector()
        supervisor = Supervisor(_supervision(chosen), partial(self._work, chosen, inherited))
        address = options["health_address"]
        with (
            sharing_metrics(address),
            HealthReporter(
                lambda: report_on(supervisor, supervisor.children), lambda: supervisor.counts,
                file=options["health_file"], address=address,
            ),
            last_exit(_longest(chosen, SUPERVISOR_EXIT_SECONDS)) as arm,
        ):  # fmt: skip
            supervisor.listen_to_signals(arm)
            if options["reloaded"]:
                stop_when_orphaned(supervisor.stop, sys.stdin.fileno())
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


def _demand_callbacks(options: dict[str, Any]) -> None:
    """Refuse to be told which callbacks to send where none are sent at all."""
    if (options["topics"] or options["callbacks_only"]) and not registry.sources:
        raise CommandError(
            _(
                "Callbacks are off, so --topics and --callbacks-only have nothing "
                "to send. Set %s['CALLBACKS']['ENABLED'] to True."
            )
            % SETTING
        )


def _options(options: dict[str, Any]) -> WorkerOptions:
    """Return the options given; those not given keep the defaults of the settings."""
    same = (
        "burst", "cron", "concurrency", "async_concurrency", "batch_size", "claims", "lease",
        "poll_interval", "max_messages", "shutdown_timeout", "worker_id", "processes",
    )  # fmt: skip
    given = {name: options[name] for name in same} | {
        "queues": tuple(options["queue"]), "using": options["database"],
        "sourced": options["topics"], "only_sourced": options["callbacks_only"],
    }  # fmt: skip
    return WorkerOptions(**{name: value for name, value in given.items() if value is not None})


def _is_reloading(chosen: WorkerOptions, options: dict[str, Any]) -> bool:
    if options["reloaded"]:
        return False
    if options["reload"] is None:
        # Not where other code calls the command, which no command line says how to run anew.
        return settings.DEBUG and not _is_finite(chosen) and "runqueueworker" in sys.argv
    return bool(options["reload"])


def _is_finite(chosen: WorkerOptions) -> bool:
    return chosen.burst or chosen.max_messages is not None


def _supervision(chosen: WorkerOptions) -> SupervisorOptions:
    return SupervisorOptions(
        processes=chosen.processes,
        slots=chosen.slots,
        using=chosen.using,
        shutdown_timeout=chosen.shutdown_timeout,
        ends=_is_finite(chosen),
        worker_id=chosen.worker_id,
    )


def _longest(chosen: WorkerOptions, grace: float) -> float:
    """Return the seconds that a stop may take, whatever the process waits for."""
    return chosen.shutdown_timeout.total_seconds() + grace


def _stop(worker: Worker, arm: Callable[[], None]) -> None:
    arm()
    worker.stop()


def _drain_on_signals(worker: Worker, arm: Callable[[], None]) -> None:
    """Drain, however often it is asked for: a process manager may signal child and supervisor.

    Whoever wants to end it at once tells the supervisor twice.
    """
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, frame: _stop(worker, arm))


def _stop_on_signals(worker: Worker, arm: Callable[[], None]) -> None:
    """The first SIGTERM or SIGINT drains; the second ends the process where it stands."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, _exit_now)
        _stop(worker, arm)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)


def _exit_now(number: int, frame: FrameType | None) -> None:
    # Not sys.exit(): that would wait for handlers, and the leases are safe with the database.
    os._exit(128 + number)
