"""The pipeline's command line: ``python -m delayed_queue.spark``."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.retries import parse_duration
from delayed_queue.spark.errors import sentence_of
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.settings import SparkSettings

DONE: Final = 0
FAILED: Final = 1
QUARANTINED: Final = 3
_PROGRAM: Final = "python -m delayed_queue.spark"


class _Parser(ArgumentParser):
    """Answers 1 to wrong arguments, as to everything that failed; 2 is not one of ours."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(FAILED, f"{self.prog}: {message}\n")


class Stopping:
    """Ctrl-C and SIGTERM: an event for who looks at it, an exception for everybody else."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.is_gentle = False

    def __call__(self, number: int, frame: Any) -> None:
        is_first = not self.event.is_set()
        self.event.set()
        if not (self.is_gentle and is_first):
            raise KeyboardInterrupt

    @contextmanager
    def gently(self) -> Iterator[threading.Event]:
        """Let the block end by itself when the event is set; a second signal does not wait."""
        self.is_gentle = True
        if threading.current_thread() is threading.main_thread():
            # Spark's session has put a handler of its own over ours, which cancels everything.
            signal.signal(signal.SIGINT, self)
        try:
            yield self.event
        finally:
            self.is_gentle = False


def main(arguments: Sequence[str], settings: SparkSettings | None = None) -> int:
    """Run a command; return 0 when it is done, 1 when it failed, 3 when records were put aside."""
    options = build_parser().parse_args(arguments)
    console = Console(as_json=options.format == "json")
    stopping = Stopping()
    try:
        with _signals(stopping):
            chosen = _settings(options, settings or SparkSettings())
            return int(options.run(options, chosen, console, stopping))
    except KeyboardInterrupt:
        console.warn("stopped")
        return FAILED
    except Exception as error:
        # Whatever Spark, Java or a driver raises, the operator gets one sentence.
        if options.verbose:
            traceback.print_exc()
        console.warn(f"{_PROGRAM} {options.command}: {sentence_of(error)}")
        return FAILED


@contextmanager
def _signals(stopping: Stopping) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stopping) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _settings(options: Namespace, settings: SparkSettings) -> SparkSettings:
    """Return the settings with what the command line says instead."""
    names = ("MASTER", "EXECUTORS", "CORES", "MEMORY", "MAX_CONNECTIONS")
    said = {name: getattr(options, name.lower(), None) for name in names}
    conf = {**settings.CONF, **dict(options.conf or ())}
    return replace(settings, **{k: v for k, v in said.items() if v is not None}, CONF=conf)


def build_parser() -> ArgumentParser:
    """Return the parser with all commands."""
    from delayed_queue.spark import commands

    parser = _Parser(prog=_PROGRAM, description=__doc__)
    chosen = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for each in commands.COMMANDS:
        command = chosen.add_parser(each.name, help=each.help, description=each.help)
        each.add_arguments(command)
        _add_common(command)
        command.set_defaults(run=each.run)
    return parser


def _add_common(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", help="local[…], spark://…, yarn or k8s://…")
    group.add_argument("--executors", type=whole, metavar="N", help="executors of a cluster")
    group.add_argument("--cores", type=whole, metavar="N", help="of each executor, or of local")
    group.add_argument("--memory", metavar="SIZE", help="of each executor, or of local: 2g")
    group.add_argument(
        "--max-connections", type=whole, metavar="N", help="the most that all parts may open"
    )
    group.add_argument(
        "--conf", type=pair, action="append", metavar="NAME=VALUE", help="a setting of Spark"
    )
    parser.add_argument("--format", choices=["text", "json"], default="text", help="of the answer")
    parser.add_argument("--verbose", action="store_true", help="with Spark's log, and stacks")


# Types of arguments


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except (DelayedQueueError, ValueError, OverflowError) as error:
            raise ArgumentTypeError(str(error)) from None

    return parsed


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not name=value")
    return name, value


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


def _positive(text: str) -> timedelta:
    found = parse_duration(text)
    if not found:
        raise ValueError(f"{text!r} is no time at all")
    return found


def _ratio(text: str) -> float:
    found = float(text)
    if not 0 <= found <= 1:
        raise ValueError(f"{text!r} is not from 0 to 1")
    return found


def _delimiter(text: str) -> str:
    found = "\t" if text == "\\t" else text
    if len(found) != 1 or found in '"\r\n':
        raise ValueError(f"{text!r} is not one character that can stand between cells")
    return found


whole = _argument(_whole)
pair = _argument(_pair)
instant = _argument(_instant)
duration = _argument(_positive)
ratio = _argument(_ratio)
number = _argument(float)
delimiter = _argument(_delimiter)
