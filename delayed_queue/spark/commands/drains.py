"""``drain``: its arguments, and the call it is a shell around."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from delayed_queue.messages import MILLISECOND
from delayed_queue.retries import RetryPolicy, parse_duration
from delayed_queue.spark.commands import arguments
from delayed_queue.spark.commands.arguments import CODECS, DONE, Command, asked_kind
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.settings import SparkSettings
from delayed_queue.spark.starting import Stopping, session


def _add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--queue", required=True, metavar="NAME", help="or a kind, as name|codec")
    add("--codec", choices=CODECS, default="json")
    add("--to", metavar="PATH", help="where the sink writes")
    add("--sink", default="parquet", metavar="FORMAT", help="any of Spark's formats")
    add("--sink-option", type=arguments.pair, action="append", default=[], metavar="NAME=VALUE")
    add("--handler", metavar="PKG:FUNC", help="call this for each message, in the executors")
    add("--retry", metavar="LADDER", help="waits after failures, as in '15s 3m 10m'")
    add("--checkpoint", metavar="PATH", help="default: the queue's own, in --to")
    add("--continuous", action="store_true", help="until it is stopped, not until it is empty")
    add("--interval", type=arguments.duration, metavar="TIME", help="of --continuous; default: 1s")
    add("--max-messages", type=arguments.whole, default=100_000, metavar="N", help="of a batch")
    add("--lease", default="10m", metavar="TIME", help="how long a batch stays exclusive")


def _run(options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping) -> int:
    from delayed_queue.spark.jobs import drains
    from delayed_queue.spark.jobs.handling import Handling

    kind = asked_kind(options)
    handling = None
    if options.handler is not None:
        retry = None if options.retry is None else RetryPolicy.ladder(options.retry)
        lease_ms = parse_duration(options.lease) // MILLISECOND
        queue = kind.rpartition("|")[0]
        handling = Handling(options.handler, queue, options.codec, retry, lease_ms)
    interval = options.interval
    asked = drains.DrainOptions(
        kind=kind,
        checkpoint=options.checkpoint,
        to=options.to,
        sink=options.sink,
        sink_options=dict(options.sink_option),
        handling=handling,
        is_continuous=options.continuous,
        interval=f"{int(interval.total_seconds() * 1000)} milliseconds" if interval else "1 second",
        max_messages=options.max_messages,
        lease=options.lease,
    )
    with (
        session(settings, console, "drain", is_verbose=options.verbose) as spark,
        stopping.gently() as event,
    ):
        found = drains.run(spark, asked, console, event)
    console.answer(found.report(), found.lines())
    return DONE


COMMAND: Final = Command(
    "drain", "Take out what is due: into files, or to a handler.", _add_arguments, _run
)
