"""Run the tournament or show a recorded one: ``python -m benchmarks.peers``."""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.database import embedded_server
from benchmarks.machine import describe
from benchmarks.peers.arena import Arena
from benchmarks.peers.contenders import ALL
from benchmarks.peers.contenders.base import Contender
from benchmarks.peers.databases import Server
from benchmarks.peers.recording import Record, load
from benchmarks.peers.reporting import as_markdown
from benchmarks.peers.rounds import MEASURES, Plan, Tournament

QUICK_SCALE: Final = 0.05


def main() -> None:
    """Measure the worker and its peers, or report on a file of measurements."""
    options = _options()
    # Workers have sessions of their own: who ends this process must not leave them behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if options.what == "list":
        for each in ALL:
            sys.stdout.write(f"{each.name:26} {each.peer.title}: {each.settings}\n")
        return
    record = load(options.json) if options.what == "report" else _measured(options)
    _write(options, record)


def _options() -> Namespace:
    parser = ArgumentParser("python -m benchmarks.peers", description=main.__doc__)
    parser.add_argument(
        "what", nargs="?", default="run", choices=["run", "report", "list"],
        help="report: render the tables and plots of the file named by --json",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="peers or contenders")
    parser.add_argument("--measure", nargs="+", default=MEASURES, choices=MEASURES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--minutes", type=float, default=25, help="no round is begun that would not end in time"
    )
    parser.add_argument("--pickup-rounds", type=int, default=1, help="of those, with pick-up (1)")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all counts")
    parser.add_argument(
        "--quick", action="store_true", help="one round of small counts: shows that all runs"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run, for `report`")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--plots", type=Path, metavar="DIR")
    parser.add_argument(
        "--database-url", default=os.environ.get("DATABASE_URL"),
        help="a server on this machine; otherwise DATABASE_URL, otherwise the embedded one",
    )  # fmt: skip
    options = parser.parse_args()
    if options.what == "report" and not (options.json and options.json.exists()):
        parser.error("report needs the --json FILE of a run")
    return options


def _chosen(names: Sequence[str]) -> list[Contender]:
    known = {each.name for each in ALL} | {each.peer.name for each in ALL}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"Unknown: {', '.join(unknown)}. Known: {', '.join(sorted(known))}.")
    return [each for each in ALL if not names or {each.name, each.peer.name} & set(names)]


def _measured(options: Namespace) -> Record:
    started_at = time.monotonic()
    record = Record(command=" ".join(sys.argv[1:]), started_at=f"{datetime.now(UTC):%F %R} UTC")
    chosen = _chosen(options.only)
    record.contenders = {each.name: _described(each) for each in chosen}
    rounds = 1 if options.quick else options.rounds
    plan = Plan(
        chosen, options.measure, options.processes, rounds, options.pickup_rounds, options.minutes
    )
    with Server(options.database_url or embedded_server()).all_dropped() as server:
        record.machine = describe(server.connection)
        arena = Arena(server, QUICK_SCALE if options.quick else options.scale)
        try:
            Tournament(arena, plan, record).run()
        finally:
            record.seconds = time.monotonic() - started_at
            if options.json:  # what was measured is kept even if the rest cannot be
                record.save(options.json)
    return record


def _described(contender: Contender) -> dict[str, object]:
    return {
        "peer": contender.peer.name,
        "kind": contender.peer.kind,
        "title": contender.peer.title,
        "settings": contender.settings,
        "batch": contender.batch,
        "at_a_time": contender.at_a_time,
        "durable": contender.peer.durable,
        "at_most_once": contender.peer.at_most_once,
        "pins": list(contender.peer.environment.pins),
        "jobs": dict(contender.jobs),
        "options": dict(contender.options),
    }


def _write(options: Namespace, record: Record) -> None:
    markdown = as_markdown(record)
    sys.stdout.write(markdown)
    if options.markdown:
        options.markdown.write_text(markdown)
    if options.plots:
        # Only now: a run without plots needs no matplotlib.
        from benchmarks.peers.plots import draw

        draw(record, options.plots)


if __name__ == "__main__":
    main()
