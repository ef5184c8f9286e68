"""``manage.py runqueueworker``: run a supervisor, or one worker, until a signal stops it."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from argparse import SUPPRESS
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.management.base import CommandError
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from delayed_queue.conf import MAX_INTERVAL, SETTING
from delayed_queue.db.own import pool_size
from delayed_queue.db.silence import limit_silence
from delayed_queue.exceptions import DatabaseRefused, DelayedQueueError, ResourceUnavailable
from delayed_queue.handlers import registry
from delayed_queue.logs import log
from delayed_queue.management.arguments import Argument, address, arg, duration, flag, number
from delayed_queue.management.base import QueueCommand
from delayed_queue.messages import MILLISECOND
from delayed_queue.worker.board import Board, Watchdog
from delayed_queue.worker.deadlines import (
    LAST_EXIT_SECONDS,
    SUPERVISOR_EXIT_SECONDS,
    last_exit,
    stop_on_signals,
)
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
    stop_when_orphaned,
)

# Allocations between two collections; a claim of 500 messages makes about 2,000.
COLLECT_AFTER: Final = 20_000


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _number(name: str, help: Any, *, least: int = 1, **options: Any) -> Argument:  # noqa: A002
    return number(f"--{name.replace('_', '-')}", help, least, MAX_COUNTS[name], **options)


_ARGUMENTS: Final = (
    arg("--queue", _(
        "a queue to serve; repeat for several, the first has strict priority "
        "(default: every queue with a handler, most overdue first, in turns)"),
        action="append", default=[], dest="queues", metavar="NAME"),
    arg("--topics", _(
        "send callbacks of these topics only (default: of all topics, unless --queue is given)"),
        type=_names, dest="sourced", metavar="A,B"),
    arg("--callbacks-only", _("send callbacks only; serve no queue that has a handler"),
        action="store_true", dest="only_sourced"),
    _number("processes", _(
        "worker processes under a supervisor (1); with 0 this process runs "
        "the handlers, unsupervised"), least=0, default=1),
    _number("concurrency", _("handler threads per process")),
    _number("async_concurrency", _("async handlers at a time, per process")),
    _number("batch_size", _("maximum messages per claim")),
    _number("claims", _(
        "claims at a time per process while batches are full, 1 or 2 (2; with one thread 1)")),
    duration("--lease", _("lease duration"), MILLISECOND),
    duration("--poll-interval", _("maximum time between polls of an idle queue"),
             MILLISECOND, MAX_INTERVAL),
    flag("--burst", _("stop as soon as nothing is due")),
    _number("max_messages", _("stop after this many deliveries per process")),
    _number("max_messages_per_process", _(
        "replace a process after about this many deliveries; another starts first")),
    _number("max_memory_per_process", _(
        "replace a process whose resident memory reaches this, in MiB; another starts first")),
    duration("--shutdown-timeout", _("maximum wait for running handlers when stopped")),
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
    (
        arg("--reload", _("restart the processes when a source file changes (default with DEBUG)"),
            action="store_true", default=None),
        arg("--no-reload", SUPPRESS, action="store_false", dest="reload"),
    ),
)  # fmt: skip


class Command(QueueCommand):
    help = gettext_noop("Deliver the messages of queues to their handlers until stopped.")
    arguments = _ARGUMENTS

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

    def _run_here(self, chosen: WorkerOptions, options: dict[str, Any]) -> None:
        limit_silence(chosen.using)
        board = Board.new(chosen.slots)
        worker = Worker(chosen, board=board)
        place = Place(0, board, os.getpid(), time.monotonic())
        with HealthReporter(
            lambda: report_on(worker, [place]), lambda: worker.counts,
            file=options["health_file"], address=options["health_address"],
        ), last_exit(_longest(chosen, LAST_EXIT_SECONDS)) as arm:  # fmt: skip
            worker.on_stop = arm
            stop_on_signals(worker.stop)
            Watchdog(board).exit_when_stuck()
            self._greet(options, worker)
            worker.run()
        self._write(options, f"Worker {worker} stopped: {worker.counts}.")
        if worker.is_used_up:
            sys.exit(EXIT_RECYCLE)

    def _work(
        self, chosen: WorkerOptions, inherited: list[Connection], child: Child, lifeline: int
    ) -> int:
        """Run one of the supervisor's processes; return the exit code."""
        limit_silence(chosen.using)
        disown(inherited)
        worker = Worker(chosen, board=child.board, process=child.index)
        try:
            with (
                self.answering(chosen.using),
                last_exit(_longest(chosen, LAST_EXIT_SECONDS)) as arm,
            ):
                worker.on_stop = arm
                # A process manager may signal child and supervisor: a child drains on each signal.
                # Two signals to the supervisor stop it at once.
                stop_on_signals(worker.stop, again=None)
                stop_when_orphaned(worker.stop, lifeline)
                worker.run()
        except CommandError as error:
            self.stderr.write(f"{type(error).__name__}: {error}")
            return error.returncode
        return EXIT_RECYCLE if worker.is_used_up else 0

    def _supervise(self, chosen: WorkerOptions, options: dict[str, Any]) -> None:
        # Creating a worker here reports wrong options once, not in each process.
        self._greet(options, Worker(chosen))
        inherited = open_connections()
        _relax_collector()
        supervisor = Supervisor(chosen, partial(self._work, chosen, inherited))
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
        self._write(options, f"Worker {supervisor} stopped: {supervisor.counts}.")
        if code:
            sys.exit(code)

    def _greet(self, options: dict[str, Any], worker: Worker) -> None:
        processes = options["processes"]
        by = f" with {processes} processes" if processes > 1 else ""
        text = f"Worker {worker} serves {', '.join(worker.serves)}{by}. Ctrl-C stops it."
        self._write(options, text)

    def _write(self, options: dict[str, Any], text: str) -> None:
        if options["verbosity"] > 0:
            self.stdout.write(text)
            self.stdout.flush()


def _relax_collector() -> None:
    """Let the garbage collector run once per batch, and never over the code of the project."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


def _demand_callbacks(options: dict[str, Any]) -> None:
    """Raise CommandError for options of callbacks while callbacks are off."""
    if (options["sourced"] or options["only_sourced"]) and not registry.sources:
        raise CommandError(
            "Callbacks are off, so --topics and --callbacks-only have nothing to send. "
            f"Set {SETTING}['CALLBACKS']['ENABLED'] to True."
        )


def _options(options: dict[str, Any]) -> WorkerOptions:
    """Return the given options; the others default to the settings."""
    known = {each.name for each in fields(WorkerOptions)}
    given = {name: value for name, value in options.items() if name in known and value is not None}
    queues = tuple(options["queues"])
    return WorkerOptions(**given | {"queues": queues, "using": options["database"]})


def _is_reloading(chosen: WorkerOptions, options: dict[str, Any]) -> bool:
    if options["reloaded"]:
        return False
    if options["reload"] is None:
        # Only from a command line, which the reloader can repeat.
        return settings.DEBUG and not chosen.is_finite and "runqueueworker" in sys.argv
    return bool(options["reload"])


def _longest(chosen: WorkerOptions, grace: float) -> float:
    """Return the maximum seconds of a stop."""
    return chosen.shutdown_timeout.total_seconds() + grace
