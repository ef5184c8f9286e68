"""``replay``: its arguments, and the call it is a shell around."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from delayed_queue.spark.commands import arguments
from delayed_queue.spark.commands.arguments import DONE, MODES, Command
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.settings import SparkSettings
from delayed_queue.spark.starting import Stopping, session


def _add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="of archive, drain or snapshot")
    add("--kind", action="append", default=[], metavar="KIND", help="as name|codec; repeat")
    add(
        "--since",
        type=arguments.instant,
        metavar="AT",
        help="died, or was scheduled, then or later",
    )
    add("--until", type=arguments.instant, metavar="AT", help="before then")
    add("--error", metavar="TEXT", help="whose reason or errors contain this")
    add("--keys", choices=["keep", "suffix"], default="keep", help="suffix: as new messages")
    add("--mode", choices=MODES, default="offer", help="what happens to keys that exist")
    add(
        "--start",
        type=arguments.instant,
        metavar="AT",
        help="when the first falls due, in UTC without an offset; default: now",
    )
    add("--over", type=arguments.duration, metavar="TIME", help="spread over so long, as in 2h")
    add("--rate", type=arguments.number, metavar="N", help="spread to so many a second, on average")
    add("--id", metavar="ID", help="of this replay; default: from files and options")
    add("--dry-run", action="store_true", help="count, offer nothing")


def _run(options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping) -> int:
    from delayed_queue.spark.jobs import replays
    from delayed_queue.spark.jobs.offers import Spread

    asked = replays.ReplayOptions(
        paths=tuple(options.paths),
        kinds=tuple(options.kind),
        since=options.since,
        until=options.until,
        error=options.error,
        suffix=options.keys == "suffix",
        mode=options.mode,
        spread=Spread.of(options.start, options.over, options.rate),
        job=options.id,
        is_dry_run=options.dry_run,
    )
    with session(settings, console, "replay", is_verbose=options.verbose) as spark:
        found = replays.run(spark, asked, console)
    console.answer(found.report(), found.lines())
    return DONE


COMMAND: Final = Command("replay", "Offer archived messages again.", _add_arguments, _run)
