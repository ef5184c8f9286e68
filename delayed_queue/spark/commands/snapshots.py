"""``snapshot``: its arguments, and the call it is a shell around."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import Final

from delayed_queue.spark.commands.arguments import CODECS, DONE, Command, asked_kind
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.settings import SparkSettings
from delayed_queue.spark.starting import Stopping, session


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--queue", metavar="NAME", help="or a kind, as name|codec; default: all")
    parser.add_argument("--codec", choices=CODECS, default="json")
    parser.add_argument("--to", required=True, metavar="PATH", help="where snapshots are kept")


def _run(options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping) -> int:
    from delayed_queue.spark.jobs import snapshots

    kind = None if options.queue is None else asked_kind(options)
    with session(settings, console, "snapshot", is_verbose=options.verbose) as spark:
        found = snapshots.run(spark, kind, options.to, console)
    console.answer(asdict(found), found.lines())
    return DONE


COMMAND: Final = Command("snapshot", "Write a queue as it stands to Parquet.", _add_arguments, _run)
