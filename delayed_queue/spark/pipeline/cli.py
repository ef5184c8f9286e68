"""The command line ``python -m delayed_queue.spark``, and the arguments its commands share."""

from __future__ import annotations

import sys
import traceback
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from delayed_queue.codecs import check_kind, codec_named, kind_of
from delayed_queue.durations import check_duration
from delayed_queue.exceptions import DelayedQueueError, InvalidConfiguration
from delayed_queue.spark.pipeline.console import Console, sentence_of
from delayed_queue.spark.pipeline.session import Stopping, signals
from delayed_queue.spark.settings import MASTERS, SparkSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
DONE: Final = 0
FAILED: Final = 1
QUARANTINED: Final = 3


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except (DelayedQueueError, ValueError, OverflowError) as error:
            raise ArgumentTypeError(str(error)) from None

    return parsed


@_argument
def whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)


@_argument
def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not name=value")
    return name, value


@_argument
def master(text: str) -> str:
    if MASTERS.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not local[…], spark://…, yarn or k8s://…")
    return text


@_argument
def instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


@_argument
def duration(text: str) -> timedelta:
    return check_duration("It", text, timedelta.resolution)


@_argument
def ratio(text: str) -> float:
    found = float(text)
    if not 0 <= found <= 1:
        raise ValueError(f"{text!r} is not from 0 to 1")
    return found


@_argument
def delimiter(text: str) -> str:
    found = "\t" if text == "\\t" else text
    if len(found) != 1 or found in '"\r\n':
        raise ValueError(f"{text!r} is not one character that can stand between cells")
    return found


@_argument
def zone(text: str) -> str:
    try:
        return ZoneInfo(text).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{text!r} is no time zone; take a name as Europe/Berlin") from None


number = _argument(float)


def given(cls: type[T], options: Namespace, /, **more: Any) -> T:
    """Return the options of a command; the arguments have the names of its fields."""
    names = {each.name for each in fields(cls)}
    found = {name: value for name, value in vars(options).items() if name in names}
    return cls(**{**found, **more})


def add_partitions(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--partitions", type=whole, metavar="N", help="maximum number of tasks that read or offer"
    )


def format_name(text: str) -> str:
    """Return Spark's name of a format; the name of a class keeps its case."""
    return text if "." in text else text.lower()


def add_offering(parser: ArgumentParser, what: str, *, dry_run: str) -> None:
    """Add the options of commands that offer: mode, schedule, id and dry run."""
    add = parser.add_argument
    add("--mode", choices=MODES, default="offer", help="ignore or replace existing keys")
    add("--start", type=instant, metavar="AT",
        help="due time of the first message, in UTC without an offset; default: now")  # fmt: skip
    add("--over", type=duration, metavar="TIME", help="spread evenly over this time, as in 2h")
    add("--rate", type=number, metavar="N", help="at most N messages fall due in a second")
    add("--id", dest="job", metavar="ID",
        help=f"id of this {what}; default: from files and options")  # fmt: skip
    add("--dry-run", dest="is_dry_run", action="store_true", help=dry_run)
    add_partitions(parser)


CODECS: Final = ("json", "text", "bytes")
MODES: Final = ("offer", "upsert")


def asked_kind(options: Namespace) -> str:
    """Return the kind of --queue: a name and the codec's, or a kind as it is written.

    Raises what ``check_kind`` raises.
    """
    name = str(options.queue)
    if "|" in name:
        return check_kind(name)
    return check_kind(kind_of(check_kind(name), codec_named(options.codec)))


def asked_name(options: Namespace) -> str | None:
    """Return the name of --queue, also of one that is written as a kind.

    Raises InvalidConfiguration when that kind is of another codec than --codec.
    """
    name, bar, codec = (options.queue or "").rpartition("|")
    if not bar:
        return options.queue  # type: ignore[no-any-return]
    if codec != options.codec:
        raise InvalidConfiguration(
            f"--queue {options.queue!r} is a kind of the codec {codec!r}, and --codec is "
            f"{options.codec!r}."
        )
    return name


_PROGRAM: Final = "python -m delayed_queue.spark"
# Module and purpose by name. Only the chosen module is loaded, because doctor must run on machines
# that lack what the others import.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "import": ("imports", "Offer the records of files."),
    "drain": ("drains", "Take out what is due: into files, or to a handler."),
    "archive": ("archives", "Move old rows to Parquet."),
    "replay": ("replays", "Offer archived messages again."),
    "snapshot": ("snapshots", "Write a queue as it stands to Parquet."),
    "report": ("reports", "Measure latency, failures, throughput and backlog."),
    "doctor": ("doctor", "Check the environment."),
    "bundle": ("bundles", "Print the path of the package for --py-files."),
    "main": ("bundles", "Print the path of the program for spark-submit."),
}


class _Parser(ArgumentParser):
    """Exits with 1 for wrong arguments, as for every failure."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(FAILED, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str], settings: SparkSettings | None = None) -> int:
    """Run a command; return 0 if it is done, 1 if it failed, 3 if it quarantined records."""
    try:
        options = build_parser(arguments[:1]).parse_args(arguments)
    except ImportError as error:
        # A package that the command's module imports is not installed.
        Console().warn(f"{_PROGRAM} {arguments[0]}: {sentence_of(error)}")
        return FAILED
    console = Console(as_json=options.format == "json")
    stopping = Stopping()
    try:
        with signals(stopping):
            chosen = _settings(options, settings or SparkSettings())
            return int(options.run(options, chosen, console, stopping))
    except KeyboardInterrupt:
        console.warn("stopped")
        return FAILED
    except Exception as error:
        # The operator gets one sentence of any error of Spark, Java or a driver.
        if options.verbose:
            traceback.print_exc()
        console.warn(f"{_PROGRAM} {options.command}: {sentence_of(error)}")
        return FAILED


def _settings(options: Namespace, settings: SparkSettings) -> SparkSettings:
    """Return the settings, overridden by the command line."""
    return replace(
        settings,
        MASTER=options.master or settings.MASTER,
        MAX_CONNECTIONS=options.max_connections or settings.MAX_CONNECTIONS,
        CONF={**settings.CONF, **dict(options.conf)},
    )


def build_parser(names: Collection[str] = tuple(COMMANDS)) -> ArgumentParser:
    """Return the parser of all commands; only those in ``names`` have their arguments."""
    parser = _Parser(prog=_PROGRAM, description="The pipeline's command line.")
    chosen = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for name, (module, words) in COMMANDS.items():
        command = chosen.add_parser(name, help=words, description=words)
        if name in names:
            loaded = import_module(f"{__package__}.{module}")
            loaded.add_arguments(command)
            _add_common(command)
            command.set_defaults(run=loaded.execute)
    return parser


def _add_common(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", type=master, help="local[…], spark://…, yarn or k8s://…")
    group.add_argument(
        "--max-connections", type=whole, metavar="N", help="maximum number of connections in all"
    )
    group.add_argument(
        "--conf",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark",
    )
    # As in management/arguments.py, which imports Django.
    parser.add_argument(
        "--format", choices=["table", "json"], default="table",
        help="json: everything, for programs (default: table)",
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show Spark's log, and tracebacks")
