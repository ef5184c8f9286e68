"""``manage.py demo``: the system at work, in acts that end with checks."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.core.management.color import no_style
from django.db import Error, connection

from delayed_queue.durations import check_duration
from delayed_queue.exceptions import DelayedQueueError, InvalidConfiguration
from delayed_queue.messages import MILLISECOND
from delayed_queue.models import Message
from example_project.demo import orders
from example_project.demo.jobs import JobsAct
from example_project.demo.notifications import NotificationsAct
from example_project.demo.orders import OrdersAct
from example_project.demo.pipeline import PipelineAct
from example_project.demo.report import Check, Console, DemoError, Outcome, Row, Stalled, stopped
from example_project.demo.stage import TIMEOUT_SECONDS, Act, Stage
from example_project.orders import InputError
from example_project.postgres import LauncherError

ACTS: Final = ("orders", "jobs", "notifications", "pipeline")
INTERRUPTED: Final = 130


class Command(BaseCommand):
    """A shell around ``example_project.demo``."""

    help = (
        "Show the system at work, in acts that each end with a report and checks. orders: orders "
        "from a file are closed at their deadline unless paid, tasks write invoices, and a worker "
        "is killed. jobs: an HTTP client adds jobs that close orders, check refunds and report "
        "payments. notifications: emails, texts and webhooks are sent through providers that "
        "fail, and dispatchers are killed. pipeline: Spark imports a campaign, archives finished "
        "rows, and makes a report."
    )
    requires_system_checks: list[str] = []  # the database may not have been started yet

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        which = f"one or more of {', '.join(ACTS)}, or all; default: orders"
        add("acts", nargs="*", metavar="ACT", help=which)
        add("--serve", action="store_true", help="keep a worker and the admin up until Ctrl-C")
        add("--format", choices=["text", "json"], default="text")
        add("--no-spark", action="store_true", help="skip the act pipeline, which needs Java")
        gives_up = "fail an act after this time without progress (default: 60s)"
        add("--timeout", type=_seconds, default=TIMEOUT_SECONDS, metavar="TIME", help=gives_up)
        add("--notifications", type=_count, metavar="N", help="only the first N notifications")
        add = parser.add_argument_group("the act orders").add_argument
        fields = "orders as JSON lines; docs/guides/demo.md lists the fields"
        add("--input", type=Path, default=orders.FILE, metavar="FILE", help=fields)
        add("--orders", type=_count, metavar="N", help="only the first N orders")
        add("--workers", type=_count, default=3, metavar="N")
        length = "from the first order to the last deadline (default: 28s, more for many orders)"
        add("--seconds", type=_seconds, metavar="TIME", help=length)

    def handle(self, *args: str, **options: Any) -> None:
        acts, as_json = _acts(options), options["format"] == "json"
        out = self.stderr if as_json else self.stdout
        console = Console(out, self.stderr, self.style if out.isatty() else no_style())
        acts = _without_what_is_missing(acts, options["acts"], console)
        with _said(), _sigterm_as_ctrl_c(), Stage(console, timeout=options["timeout"]) as stage:
            outcomes = _run(stage, acts, serve=options["serve"])
            if as_json:
                self.stdout.write(_as_json(outcomes))
            _end(stage, serve=options["serve"])
        failed = [f"{each.name} ({name})" for name, act in outcomes.items() for each in act.failed]
        if failed:
            raise CommandError(f"Failed: {', '.join(failed)}.")


def _acts(options: dict[str, Any]) -> list[Act]:
    """Return the chosen acts, in their fixed order."""
    wanted = options["acts"] or ACTS[:1]
    if "all" in wanted:
        wanted = ACTS
    if unknown := [each for each in wanted if each not in ACTS]:
        raise CommandError(f"There is no act {unknown[0]!r}; there are: {', '.join(ACTS)}.")
    if options["no_spark"]:
        wanted = [each for each in wanted if each != PipelineAct.name]
    if not wanted:
        raise CommandError("No act is left: pipeline is the one that needs Spark.")
    play = OrdersAct(**{name: options[name] for name in ("input", "orders", "workers", "seconds")})
    acts = (play, JobsAct(), NotificationsAct(options["notifications"]), PipelineAct())
    return [each for each in acts if each.name in wanted]


def _what_is_missing() -> str:
    """Return what must be installed before Spark can start; an empty text if nothing."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "PySpark is not installed: pip install 'django-delayed-queue[spark,spark-jre]'."
    from delayed_queue.spark.pipeline.session import find_java_home

    try:
        find_java_home()
    except DelayedQueueError as error:
        return str(error)
    return ""


def _without_what_is_missing(acts: list[Act], named: Sequence[str], console: Console) -> list[Act]:
    """Drop the act of Spark if Spark cannot run; raise if it was chosen by name."""
    missing = _what_is_missing() if any(isinstance(each, PipelineAct) for each in acts) else ""
    if not missing:
        return acts
    if PipelineAct.name in named:
        raise CommandError(f"The act pipeline cannot run. {missing}")
    console.warn(f"Without the act pipeline: {missing}")
    return [each for each in acts if not isinstance(each, PipelineAct)]


@contextmanager
def _said() -> Iterator[None]:
    """Turn the errors that end the demo into one sentence."""
    try:
        yield
    except KeyboardInterrupt:
        # Ctrl-C may interrupt a statement, after which the connection takes no other.
        connection.close()
        left = f"{Message.objects.count():,} messages are left, which the next run deletes."
        said = f"Interrupted; all processes are stopped. {left}"
        raise CommandError(said, returncode=INTERRUPTED) from None
    except BrokenPipeError:
        # The reader has gone. The interpreter must not write to it either when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise CommandError("Stopped, as the output is no longer read.") from None
    except (DemoError, InputError, LauncherError) as error:
        raise CommandError(str(error)) from error
    except (Error, DelayedQueueError) as error:
        raise CommandError(f"The database cannot be used: {error}") from error


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that ``kill`` and ``timeout`` stop all processes."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(stage: Stage, acts: Sequence[Act], *, serve: bool) -> dict[str, Outcome]:
    """Run the acts in order, and show the outcome of each."""
    console, outcomes = stage.console, {}
    stage.prepare(acts)
    console.step("admin", f"{stage.admin}, live until {'Ctrl-C' if serve else 'the end'}")
    for position, act in enumerate(acts):
        heading = console.style.MIGRATE_HEADING(act.name.upper())
        console.say(f"\n{heading}: {act.introduction}\n")
        # Spark starts while the jobs wait for their time, not beside the busy acts.
        for later in acts[position + 2 : position + 3]:
            later.warm_up(stage)
        outcome = outcomes[act.name] = _outcome_of(act, stage)
        _show(outcome, console)
        if not outcome.rows:
            break
    passed = [check.passed for each in outcomes.values() for check in each.checks]
    console.say()
    console.step("checks", f"{sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return outcomes


def _outcome_of(act: Act, stage: Stage) -> Outcome:
    """Return the outcome of the act; one failed check if it made no progress."""
    began = time.monotonic()
    stage.codes.clear()
    try:
        rows, checks = act.run(stage)
    except Stalled as error:
        return Outcome([], [Check("act finished", False, str(error))])
    took = Row("seconds", time.monotonic() - began)
    return Outcome([*rows, took], [*checks, stopped(stage.codes)])


def _show(outcome: Outcome, console: Console) -> None:
    """Print the report of an act and its checks."""
    console.say()
    for row in outcome.rows:
        console.say(f"  {row}")
    console.say()
    for each in outcome.checks:
        verdict = console.style.SUCCESS("ok  ") if each.passed else console.style.ERROR("FAIL")
        console.say(f"  {verdict} {each.name:<22} {each.statement}")
        if each.proves:
            console.say(f"{'':<30}proves: {each.proves}")


def _end(stage: Stage, *, serve: bool) -> None:
    if serve:
        stage.serve()
        stage.console.say("Stopped.")
        return
    stage.console.step("admin", "run `DEBUG=1 python manage.py runserver`, then open /admin/")
    stage.console.step("login", stage.login)
    if settings.EMBEDDED_POSTGRES:
        stage.console.step("database", "still running; `python manage.py queuedb stop` stops it")


def _as_json(outcomes: dict[str, Outcome]) -> str:
    acts = {name: each.as_json() for name, each in outcomes.items()}
    passed = all(each["passed"] for each in acts.values())
    return json.dumps({"passed": passed, "acts": acts}, ensure_ascii=False)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000000")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return check_duration("It", text, MILLISECOND).total_seconds()
    except InvalidConfiguration as error:
        raise ArgumentTypeError(str(error)) from None
