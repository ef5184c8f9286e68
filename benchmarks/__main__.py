"""Run the comparisons: ``python -m benchmarks``."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path

from benchmarks.database import benchmark_database, embedded_server
from benchmarks.machine import describe
from benchmarks.measuring import Comparison, Meter, Result
from benchmarks.reporting import as_json, as_markdown


def main() -> None:
    """Measure what was asked for, in a database that is dropped at the end."""
    options = _options()
    with benchmark_database(options.database_url or embedded_server()) as connection:
        # Only now: Django's models cannot be imported before there are settings.
        from benchmarks import groups
        from benchmarks.drains import drains
        from benchmarks.workloads import comparisons

        machine = describe(connection)
        chosen = _chosen(
            [*comparisons(connection), *groups.comparisons(connection), *drains(connection)],
            options.only,
        )
        meter = Meter(connection, options.seconds)
        results = [_measured(meter, each, options.rounds) for each in chosen]
    _write(options, machine, results)


def _options() -> Namespace:
    parser = ArgumentParser("python -m benchmarks", description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each side, in turns (5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of work in a round (1)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="e.g. offer poll-100")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument(
        "--database-url",
        default=os.environ.get("DATABASE_URL"),
        help="a server on which a database may be created; otherwise DATABASE_URL, otherwise "
        "the embedded PostgreSQL, which is started and left running",
    )
    return parser.parse_args()


def _chosen(comparisons: list[Comparison], names: list[str]) -> Iterable[Comparison]:
    known = {each.name: each for each in comparisons}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"Unknown: {', '.join(unknown)}. Known: {', '.join(known)}.")
    return [known[name] for name in names] or comparisons


def _measured(meter: Meter, comparison: Comparison, rounds: int) -> Result:
    result = meter.compare(comparison, rounds)
    sys.stderr.write(
        f"{result.name:15} {result.ours.rate:10,.0f}/s  bare {result.bare.rate:10,.0f}/s  "
        f"ratio {result.ratio:.2f} ({min(result.ratios):.2f}-{max(result.ratios):.2f})\n"
    )
    return result


def _write(options: Namespace, machine: dict[str, str], results: list[Result]) -> None:
    markdown = as_markdown(machine, results)
    sys.stdout.write(markdown)
    if options.markdown:
        options.markdown.write_text(markdown)
    if options.json:
        options.json.write_text(json.dumps(as_json(machine, results), indent=2) + "\n")


if __name__ == "__main__":
    main()
