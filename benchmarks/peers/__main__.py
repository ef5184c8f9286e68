"""Measure the worker beside other queues, in turns: ``python -m benchmarks.peers``.

``--list`` shows the contenders and their settings, ``--quick`` runs all of them with small counts.
"""

from __future__ import annotations

import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterator

import psycopg

from benchmarks.peers.arena import Arena, ScriptFailed, redis
from benchmarks.peers.contenders import CONTENDERS, REDIS, Contender
from benchmarks.peers.environments import Unavailable
from benchmarks.peers.measures import MEASURES
from benchmarks.peers.results import Record
from benchmarks.shared.database import embedded_server
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, say

QUICK_SCALE = 0.02
FAILURES = (OSError, RuntimeError, ScriptFailed, TimeoutError, Unavailable, psycopg.Error)


def main() -> None:
    """Run the rounds; a contender that cannot run is listed with the reason."""
    options = _options()
    chosen = [each for each in CONTENDERS if not options.only or _is_named(each, options.only)]
    if options.list:
        sys.stdout.writelines(f"{each.name:24} {each.title}\n" for each in chosen)
        return
    # Workers have sessions of their own: they must not outlive this process.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    url = options.database_url or embedded_server()
    with psycopg.connect(url, autocommit=True) as connection:
        arena = Arena(url, connection, QUICK_SCALE if options.quick else 1.0)
        record, report = Record(chosen), Report(describe(connection))
        try:
            _run(arena, record, options)
        finally:
            arena.drop_all()
            report.tables, report.data = record.tables(), {"runs": record.runs}
            report.write(options)


def _options() -> Namespace:
    options = Options(".peers", __doc__).size("rounds", 3, 1, "rounds of the drain and the offer")
    options.size("minutes", 25.0, 25.0, "no round starts that would not end in this time")
    add = options.parser.add_argument
    add("--only", nargs="+", default=[], metavar="NAME", help="contenders, or beginnings of names")
    add("--measure", nargs="+", default=list(MEASURES), choices=MEASURES)
    add("--processes", nargs="+", type=int, default=[1, 2], help="of a drain (1 2)")
    add("--list", action="store_true", help="show the contenders and their settings")
    return options.parse()


def _is_named(contender: Contender, names: list[str]) -> bool:
    return any(f"{contender.name}-".startswith(f"{name}-") for name in names)


def _run(arena: Arena, record: Record, options: Namespace) -> None:
    began_at = time.monotonic()
    for contender in record.contenders:
        _prepare(contender, record)
    for number in range(options.rounds):
        if number and (time.monotonic() - began_at) * (number + 1) / number > options.minutes * 60:
            say("The next round would not end in time.")
            return
        for measure, contender, processes in _steps(number, record.contenders, options):
            if contender.name not in record.not_run:
                _measure(arena, record, measure, contender, processes)


def _steps(
    number: int, contenders: list[Contender], options: Namespace
) -> Iterator[tuple[str, Contender, int]]:
    """Yield what a round measures; every second round goes backwards."""
    ordered = contenders if number % 2 == 0 else contenders[::-1]
    for measure in options.measure:
        if number and measure in ("pickup", "idle"):
            continue
        for processes in options.processes if measure == "drain" else [1]:
            for contender in ordered:
                if measure in ("drain", *contender.measures):
                    yield measure, contender, processes


def _prepare(contender: Contender, record: Record) -> None:
    try:
        record.interpreters[contender.peer.title] = contender.peer.environment.make()
        # Its database is emptied for each run.
        if not contender.peer.tables and redis("DBSIZE"):
            raise Unavailable("Database {2} of Redis at {0}:{1} is in use".format(*REDIS))
    except FAILURES as error:
        record.excuse(contender, f"{type(error).__name__}: {error}")


def _measure(
    arena: Arena, record: Record, measure: str, contender: Contender, processes: int
) -> None:
    try:
        figures = MEASURES[measure](arena, contender, processes)
    except FAILURES as error:
        record.excuse(contender, f"{measure} by {processes}: {type(error).__name__}: {error}")
        return
    record.add(contender, measure, processes, figures)


if __name__ == "__main__":
    main()
