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
from example_project.demo import render
from example_project.demo.acts import Act, Outcome, stalled
from example_project.demo.console import Console
from example_project.demo.exceptions import DemoError, Stalled
from example_project.demo.jobs.run import JobsAct
from example_project.demo.notifications.run import NotificationsAct
from example_project.demo.orders.run import Options, OrdersAct
from example_project.demo.patience import SECONDS as PATIENCE
from example_project.demo.pipeline.run import PipelineAct
from example_project.demo.stage import Stage
from example_project.orders import InputError
from example_project.postgres import LauncherError

ORDERS: Final = Path(settings.BASE_DIR) / "example_project" / "data" / "orders.jsonl"
ACTS: Final = ("orders", "jobs", "notifications", "pipeline")
SPARK: Final = "pipeline"
INTERRUPTED: Final = 130


class Command(BaseCommand):
    """A shell around ``example_project.demo``."""

    help = (
        "Show the system at work, in acts that each end in a report and checks. orders: orders "
        "from a file are offered to be closed at their deadline, most are paid before, worker "
        "processes close the others, one of them is killed. jobs: a client that knows only "
        "HTTP has orders closed, refunds looked after and upstreams told. notifications: emails, "
        "texts and webhooks are asked for by HTTP and broker, and sent through providers that "
        "fail; a dispatcher is killed. pipeline: Spark imports a campaign, archives what has "
        "ended, and measures it."
    )
    requires_system_checks: list[str] = []  # the database may not have been started yet

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "acts", nargs="*", metavar="ACT",
            help=f"one or more of {', '.join(ACTS)}; all if none is named",
        )  # fmt: skip
        parser.add_argument(
            "--serve", action="store_true", help="keep a worker and the admin up until Ctrl-C"
        )
        parser.add_argument("--format", choices=["text", "json"], default="text")
        parser.add_argument(
            "--no-spark", action="store_true", help="without the act pipeline, which needs Java"
        )
        parser.add_argument(
            "--patience", type=_positive, default=PATIENCE, metavar="S",
            help="give an act up when nothing moves for so long (default: 60 seconds)",
        )  # fmt: skip
        _add_orders(parser)
        notifications = parser.add_argument_group("the act notifications")
        notifications.add_argument(
            "--notifications", type=_count, metavar="N", help="only the first N requests"
        )

    def handle(self, *args: str, **options: Any) -> None:
        acts = _acts(options)
        as_json = options["format"] == "json"
        out = self.stderr if as_json else self.stdout
        console = Console(out, self.stderr, colour=self.style.ERROR("x") != "x" and out.isatty())
        self._current: Act = acts[0]
        try:
            with _sigterm_as_ctrl_c(), Stage(console, patience=options["patience"]) as stage:
                outcomes = self._run(stage, acts, options)
        except KeyboardInterrupt:
            # It may have come in the middle of a statement; the connection takes no other then.
            connection.close()
            said = f"Interrupted; all processes are stopped. {self._current.left()}"
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

    def _run(
        self, stage: Stage, acts: Sequence[Act], options: dict[str, Any]
    ) -> dict[str, Outcome]:
        """Run the acts in order, show what came of each, serve if asked to."""
        console, outcomes = stage.console, {}
        stage.prepare(acts)
        if options["serve"]:
            console.step("admin", f"{stage.web.admin} {stage.account}")
        for position, act in enumerate(acts):
            self._current = act
            # Spark starts while the jobs wait for their time, not beside the busy acts.
            for later in acts[position + 2 : position + 3]:
                later.warm_up(stage)
            console.say()
            console.say(console.bold(act.introduction))
            console.say()
            outcomes[act.name], is_over = self._act(act, stage)
            if options["format"] == "text":
                render.as_text(act.name, outcomes[act.name], console)
            if not is_over:
                break
        if options["format"] == "json":
            self.stdout.write(json.dumps(render.as_json(outcomes), ensure_ascii=False))
        self._end(stage, serve=options["serve"])
        return outcomes

    def _act(self, act: Act, stage: Stage) -> tuple[Outcome, bool]:
        """Run an act; return what came of it, and whether it got to its end."""
        try:
            return act.run(stage), True
        except Stalled as error:
            stage.console.keep()
            return stalled(error), False

    def _end(self, stage: Stage, *, serve: bool) -> None:
        if serve:
            stage.serve()
            stage.console.say("Stopped.")
        else:
            stage.console.step("admin", stage.how_to_serve())
        if settings.EMBEDDED_POSTGRES:
            stage.console.step(
                "database", "goes on running; `python manage.py queuedb stop` stops it"
            )


def _add_orders(parser: ArgumentParser) -> None:
    orders = parser.add_argument_group("the act orders")
    orders.add_argument(
        "--input", type=Path, default=ORDERS, metavar="FILE",
        help="orders as .jsonl or .csv; docs/guides/demo.md lists the columns",
    )  # fmt: skip
    orders.add_argument("--orders", type=_count, metavar="N", help="only the first N orders")
    orders.add_argument("--workers", type=_count, default=3, metavar="N")
    pace = orders.add_mutually_exclusive_group()
    pace.add_argument(
        "--seconds", type=_positive, metavar="S",
        help="from the first order to the last deadline (default: 28, longer for more "
        "than 10,080 orders)",
    )  # fmt: skip
    pace.add_argument(
        "--speed", type=_positive, metavar="X", help="how much faster than in the file"
    )
    orders.add_argument(
        "--rejects", type=Path, metavar="FILE", help="where rejected lines go (JSON lines)"
    )
    orders.add_argument("--no-kill", action="store_true", help="do not kill a worker")


def _acts(options: dict[str, Any]) -> list[Act]:
    """Return the acts that are wanted, in their own order."""
    wanted = options["acts"] or ACTS
    unknown = [each for each in wanted if each not in ACTS]
    if unknown:
        raise CommandError(f"There is no act {unknown[0]!r}; there are: {', '.join(ACTS)}.")
    if options["no_spark"]:
        wanted = [each for each in wanted if each != SPARK]
    if not wanted:
        raise CommandError("No act is left: pipeline is the one that needs Spark.")
    known: dict[str, Act] = {
        "orders": OrdersAct(_order_options(options)),
        "jobs": JobsAct(),
        "notifications": NotificationsAct(options["notifications"]),
        "pipeline": PipelineAct(),
    }
    return [known[name] for name in ACTS if name in wanted]


def _order_options(options: dict[str, Any]) -> Options:
    rejects: Path | None = options["rejects"]
    if rejects is not None and rejects.resolve() == options["input"].resolve():
        raise CommandError("--rejects must not be the input itself.")
    return Options(
        input=options["input"],
        limit=options["orders"],
        workers=options["workers"],
        seconds=options["seconds"],
        speed=options["speed"],
        kill=not options["no_kill"],
        rejects=rejects,
    )


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
