"""``manage.py demo``: the system at work in acts, each of them checked at its end."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connection

from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.models import Message
from example_project.demo.acts import (
    BOLD,
    DIM,
    GREEN,
    RED,
    TIMEOUT_SECONDS,
    Act,
    Check,
    Console,
    DemoError,
    Outcome,
    Stage,
    Stalled,
)
from example_project.demo.jobs import JobsAct
from example_project.demo.notifications import NotificationsAct
from example_project.demo.orders import Options, OrdersAct
from example_project.demo.pipeline import PipelineAct, what_is_missing
from example_project.orders import InputError
from example_project.postgres import LauncherError

ORDERS: Final = Path(settings.BASE_DIR) / "example_project" / "data" / "orders.jsonl"
ACTS: Final = ("orders", "jobs", "notifications", "pipeline")
INTERRUPTED: Final = 130


class Command(BaseCommand):
    """A shell around ``example_project.demo``."""

    help = (
        "Show the system at work, in acts that each end in a report and checks. orders: orders "
        "from a file are closed at their deadline unless paid, tasks write invoices, and a worker "
        "is killed. jobs: a client that knows only HTTP has orders closed, refunds looked after "
        "and upstreams told. notifications: emails, texts and webhooks are sent through providers "
        "that fail, and a dispatcher is killed. pipeline: Spark imports a campaign, archives what "
        "has ended, and measures it."
    )
    requires_system_checks: list[str] = []  # the database may not have been started yet

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "acts",
            nargs="*",
            metavar="ACT",
            help=f"one or more of {', '.join(ACTS)}; all if none is named, pipeline where Java is",
        )
        add("--serve", action="store_true", help="keep a worker and the admin up until Ctrl-C")
        add("--format", choices=["text", "json"], default="text")
        add("--no-spark", action="store_true", help="without the act pipeline, which needs Java")
        add(
            "--timeout",
            type=_positive,
            default=TIMEOUT_SECONDS,
            metavar="S",
            help="give an act up when nothing moves for so long (default: 60 seconds)",
        )
        add("--notifications", type=_count, metavar="N", help="only the first N notifications")
        add = parser.add_argument_group("the act orders").add_argument
        add(
            "--input",
            type=Path,
            default=ORDERS,
            metavar="FILE",
            help="orders as .jsonl or .csv; docs/guides/demo.md lists the columns",
        )
        add("--orders", type=_count, metavar="N", help="only the first N orders")
        add("--workers", type=_count, default=3, metavar="N")
        add(
            "--seconds",
            type=_positive,
            metavar="S",
            help="from the first order to the last deadline (default: 28, longer for more "
            "than 10,080 orders)",
        )
        add("--rejects", type=Path, metavar="FILE", help="where rejected lines go (JSON lines)")
        add("--no-kill", action="store_true", help="do not kill a worker")

    def handle(self, *args: str, **options: Any) -> None:
        acts, as_json = _acts(options), options["format"] == "json"
        out = self.stderr if as_json else self.stdout
        console = Console(out, self.stderr, colour=self.style.ERROR("x") != "x")
        if missing := _missing(acts):
            acts = _without_spark(acts, options["acts"], missing)
            console.warn(f"Without the act pipeline: {missing}")
        try:
            with _sigterm_as_ctrl_c(), Stage(console, timeout=options["timeout"]) as stage:
                outcomes = self._run(stage, acts, serve=options["serve"])
                if as_json:
                    self.stdout.write(_as_json(outcomes))
                self._end(stage, serve=options["serve"])
        except KeyboardInterrupt:
            # It may have come in the middle of a statement; the connection takes no other then.
            connection.close()
            left = f"{Message.objects.count():,} messages are left, which the next run deletes."
            said = f"Interrupted; all processes are stopped. {left}"
            raise CommandError(said, returncode=INTERRUPTED) from None
        except BrokenPipeError:
            # Nobody reads on. Nor must the interpreter try to, when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise CommandError("Stopped, as the output is no longer read.") from None
        except (DemoError, InputError, LauncherError) as error:
            raise CommandError(str(error)) from error
        except (Error, DelayedQueueError) as error:
            raise CommandError(f"The database cannot be used: {error}") from error
        _fail(outcomes)

    def _run(self, stage: Stage, acts: Sequence[Act], *, serve: bool) -> dict[str, Outcome]:
        """Run the acts in order, and show what came of each."""
        console, outcomes = stage.console, {}
        stage.prepare(acts)
        if serve:
            console.step("admin", f"{stage.admin} {stage.login}")
        for position, act in enumerate(acts):
            console.say(f"\n{console.styled(act.name.upper(), BOLD)}: {act.introduction}\n")
            # Spark starts while the jobs wait for their time, not beside the busy acts.
            for later in acts[position + 2 : position + 3]:
                later.warm_up(stage)
            try:
                outcomes[act.name] = act.run(stage)
            except Stalled as error:
                check = Check("came to its end", False, str(error))
                outcomes[act.name] = Outcome({"stalled": str(error)}, [], [check])
            _show(outcomes[act.name], console)
            if "stalled" in outcomes[act.name].figures:
                break
        passed = [check.passed for each in outcomes.values() for check in each.checks]
        console.say()
        console.step("checks", f"{sum(passed)} ok, {len(passed) - sum(passed)} failed")
        return outcomes

    def _end(self, stage: Stage, *, serve: bool) -> None:
        console = stage.console
        if serve:
            stage.serve()
            console.say("Stopped.")
            return
        console.step("admin", f"`DEBUG=1 python manage.py runserver`, then /admin/ {stage.login}")
        if settings.EMBEDDED_POSTGRES:
            console.step("database", "goes on running; `python manage.py queuedb stop` stops it")


def _show(outcome: Outcome, console: Console) -> None:
    """Say the report of an act and its checks."""
    console.say()
    for name, text in outcome.rows:
        console.say(f"  {name:<14} {text.format(**outcome.figures)}")
    console.say()
    for each in outcome.checks:
        verdict = console.styled("ok  ", GREEN) if each.passed else console.styled("FAIL", RED)
        console.say(f"  {verdict} {each.name:<22} {console.styled(each.statement, DIM)}")


def _as_json(outcomes: dict[str, Outcome]) -> str:
    acts = {
        name: {
            "passed": not each.failed,
            **each.figures,
            "checks": [check._asdict() for check in each.checks],
        }
        for name, each in outcomes.items()
    }
    passed = not any(each.failed for each in outcomes.values())
    return json.dumps({"passed": passed, "acts": acts}, ensure_ascii=False)


def _acts(options: dict[str, Any]) -> list[Act]:
    """Return the acts that are wanted, in their own order."""
    wanted = options["acts"] or ACTS
    unknown = [each for each in wanted if each not in ACTS]
    if unknown:
        raise CommandError(f"There is no act {unknown[0]!r}; there are: {', '.join(ACTS)}.")
    if options["no_spark"]:
        wanted = [each for each in wanted if each != PipelineAct.name]
    if not wanted:
        raise CommandError("No act is left: pipeline is the one that needs Spark.")
    all_of_them: tuple[Act, ...] = (
        OrdersAct(_order_options(options)),
        JobsAct(),
        NotificationsAct(options["notifications"]),
        PipelineAct(),
    )
    return [each for each in all_of_them if each.name in wanted]


def _missing(acts: Sequence[Act]) -> str:
    """Return what is to be installed for those acts; nothing when all is there."""
    return what_is_missing() if any(each.name == PipelineAct.name for each in acts) else ""


def _without_spark(acts: Sequence[Act], named: Sequence[str], missing: str) -> list[Act]:
    """Leave the act of Spark out, unless it was asked for by its name."""
    if PipelineAct.name in named:
        raise CommandError(f"The act pipeline cannot run. {missing}")
    return [each for each in acts if each.name != PipelineAct.name]


def _order_options(options: dict[str, Any]) -> Options:
    rejects: Path | None = options["rejects"]
    if rejects is not None and rejects.resolve() == options["input"].resolve():
        raise CommandError("--rejects must not be the input itself.")
    return Options(
        options["input"], options["orders"], options["workers"], options["seconds"],
        not options["no_kill"], rejects,
    )  # fmt: skip


def _fail(outcomes: dict[str, Outcome]) -> None:
    failed = [
        f"{check.name} ({name})" for name, outcome in outcomes.items() for check in outcome.failed
    ]
    if failed:
        raise CommandError(f"The run is not good. Failed: {', '.join(failed)}.")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000000")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= 1e9:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that ``kill`` and ``timeout`` leave nothing running."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # where signals cannot be set
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
