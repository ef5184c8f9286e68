"""``manage.py demo``: orders closed at their deadline unless they are paid, seen and proven."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from delayed_queue.exceptions import DelayedQueueError
from example_project.demo import figures, render
from example_project.demo.checks import Check, check
from example_project.demo.console import Console
from example_project.demo.exceptions import DemoError
from example_project.demo.run import Demo, Options
from example_project.orders import InputError
from example_project.postgres import LauncherError
from example_project.shop import QUEUE_NAME

ORDERS: Final = Path(settings.BASE_DIR) / "example_project" / "data" / "orders.jsonl"
INTERRUPTED: Final = 130


class Command(BaseCommand):
    """A shell around ``example_project.demo``."""

    help = (
        "Run a shop on the queue: orders from a file are offered to be closed at their deadline, "
        "most are paid before, worker processes close the others, one of them is killed; then "
        "the database is checked against the file."
    )
    requires_system_checks: list[str] = []  # the database may not have been started yet

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--input", type=Path, default=ORDERS, metavar="FILE",
            help="orders as .jsonl or .csv; docs/guides/demo.md lists the columns",
        )  # fmt: skip
        parser.add_argument("--orders", type=_count, metavar="N", help="only the first N orders")
        parser.add_argument("--workers", type=_count, default=3, metavar="N")
        pace = parser.add_mutually_exclusive_group()
        pace.add_argument(
            "--seconds", type=_positive, metavar="S",
            help="from the first order to the last deadline (default: 36, longer for more "
            "than 10,800 orders)",
        )  # fmt: skip
        pace.add_argument(
            "--speed", type=_positive, metavar="X", help="how much faster than in the file"
        )
        parser.add_argument(
            "--serve", action="store_true", help="keep workers and the admin up until Ctrl-C"
        )
        parser.add_argument("--format", choices=["text", "json"], default="text")
        parser.add_argument(
            "--rejects", type=Path, metavar="FILE", help="where rejected lines go (JSON lines)"
        )
        parser.add_argument("--no-kill", action="store_true", help="do not kill a worker")

    def handle(self, **options: Any) -> None:
        chosen = _options(options)
        as_json = options["format"] == "json"
        out = self.stderr if as_json else self.stdout
        console = Console(out, self.stderr, colour=self.style.ERROR("x") != "x" and out.isatty())
        demo = Demo(chosen, console)
        try:
            with _sigterm_as_ctrl_c(), demo:
                failed = self._run(demo, console, as_json=as_json)
        except KeyboardInterrupt:
            raise CommandError(_left_behind(demo), returncode=INTERRUPTED) from None
        except BrokenPipeError:
            # Nobody reads on. Nor must the interpreter try to, when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise CommandError("Stopped, as the output is no longer read.") from None
        except (DemoError, InputError, LauncherError) as error:
            raise CommandError(str(error)) from error
        except (Error, DelayedQueueError) as error:
            raise CommandError(f"The database cannot be used: {error}") from error
        if failed:
            names = ", ".join(each.name for each in failed)
            raise CommandError(f"The run is not good. Failed: {names}.")

    def _run(self, demo: Demo, console: Console, *, as_json: bool) -> list[Check]:
        """Run, show the report, serve if asked to; return the checks that failed."""
        report = demo.run()
        checks = check(report)
        if as_json:
            self.stdout.write(json.dumps(render.as_json(report, checks), ensure_ascii=False))
        else:
            render.as_text(report, checks, console)
        if demo.options.serve:
            demo.serve()
            console.say("Stopped.")
        else:
            console.step("admin", demo.admin)
        if settings.EMBEDDED_POSTGRES:
            console.step("database", "goes on running; `python manage.py queuedb stop` stops it")
        return [each for each in checks if not each.passed]


def _options(options: dict[str, Any]) -> Options:
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
        serve=options["serve"],
        rejects=rejects,
    )


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


def _left_behind(demo: Demo) -> str:
    """Say what an interrupted run leaves."""
    stopped = "Interrupted; the workers are stopped."
    if not demo.has_loaded:
        return f"{stopped} No orders were stored."
    try:
        left = figures.count()
    except (Error, DelayedQueueError) as error:
        return f"{stopped} What is left cannot be counted: {error}"
    return (
        f"{stopped} Left in the database: {left.open:,} orders open, {left.paid:,} paid, "
        f"{left.closed:,} closed; {left.messages:,} messages in the queue, {left.dead:,} dead. "
        f"`manage.py runqueueworker --queue {QUEUE_NAME}` would deliver them, `manage.py demo` "
        "begins anew."
    )
