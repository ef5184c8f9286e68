"""The pipeline's command line: ``python -m delayed_queue.spark``."""

from __future__ import annotations

import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Final, NoReturn

from delayed_queue.spark.commands.arguments import FAILED, pair, whole
from delayed_queue.spark.jobs.console import Console, sentence_of
from delayed_queue.spark.session import Stopping, signals
from delayed_queue.spark.settings import SparkSettings

_PROGRAM: Final = "python -m delayed_queue.spark"
# As --help lists them: in which module, and what for. One is loaded when it is asked for, since
# doctor is for machines that lack what the others load.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "import": ("imports", "Offer the records of files."),
    "drain": ("drains", "Take out what is due: into files, or to a handler."),
    "archive": ("archives", "Move old rows to Parquet."),
    "replay": ("replays", "Offer archived messages again."),
    "snapshot": ("snapshots", "Write a queue as it stands to Parquet."),
    "report": ("reports", "Measure latency, failures, throughput and backlog."),
    "doctor": ("doctor", "Say what is wrong with the environment."),
    "bundle": ("bundle", "Print the path of the package for --py-files."),
    "main": ("bundle", "Print the path of the program for spark-submit."),
}


class _Parser(ArgumentParser):
    """Answers 1 to wrong arguments, as to everything that failed; 2 is not one of ours."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(FAILED, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str], settings: SparkSettings | None = None) -> int:
    """Run a command; return 0 when it is done, 1 when it failed, 3 when records were put aside."""
    try:
        options = build_parser(arguments[:1]).parse_args(arguments)
    except ImportError as error:
        # What the command's module needs is not installed.
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
        # Whatever Spark, Java or a driver raises, the operator gets one sentence.
        if options.verbose:
            traceback.print_exc()
        console.warn(f"{_PROGRAM} {options.command}: {sentence_of(error)}")
        return FAILED


def _settings(options: Namespace, settings: SparkSettings) -> SparkSettings:
    """Return the settings with what the command line says instead."""
    names = ("MASTER", "EXECUTORS", "CORES", "MEMORY", "MAX_CONNECTIONS")
    said = {name: getattr(options, name.lower(), None) for name in names}
    conf = {**settings.CONF, **dict(options.conf or ())}
    return replace(settings, **{k: v for k, v in said.items() if v is not None}, CONF=conf)


def build_parser(names: Collection[str] = tuple(COMMANDS)) -> ArgumentParser:
    """Return the parser with all commands, of which those with these names have their arguments."""
    parser = _Parser(prog=_PROGRAM, description=__doc__)
    chosen = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for name, (module, words) in COMMANDS.items():
        command = chosen.add_parser(name, help=words, description=words)
        if name in names:
            loaded = import_module(f"{__name__}.{module}")
            loaded.add_arguments(command)
            _add_common(command)
            command.set_defaults(run=loaded.execute)
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
