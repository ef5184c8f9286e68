"""Compare every call of the queue with bare SQL for the same work: ``python -m benchmarks``."""

from __future__ import annotations

from argparse import Namespace
from statistics import median
from typing import Any, Final

from benchmarks.bare import create_bare_table
from benchmarks.shared.database import benchmark_database
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.rounds import spread
from benchmarks.shared.short_turns import Comparison, Result, compare

HEADER: Final = (
    "work", "queue, messages/s", "bare, messages/s", "ratio (rounds)", "aim",
    "queue p50 / p99, ms", "bare p50 / p99, ms", "WAL, bytes a message: queue / bare",
)  # fmt: skip


def main() -> None:
    """Measure the comparisons that the options name, or all of them."""
    options = _options()
    with benchmark_database(options.database_url) as connection:
        create_bare_table(connection)
        # Django's models cannot be imported before it is configured.
        from benchmarks.calls import comparisons

        report, table = Report(describe(connection)), Table("Calls beside bare SQL", HEADER)
        for each in _chosen(comparisons(connection), options.only):
            result = compare(connection, each, options.rounds, options.seconds)
            table.add(*_cells(result))
            report.data[each.name] = _figures(result)
    report.tables.append(table)
    report.write(options)


def _options() -> Namespace:
    options = Options("", __doc__).size("rounds", 5, 1, "rounds of each side, in turns")
    options.size("seconds", 1.0, 0.05, "seconds of work in a round")
    options.parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    return options.parse()


def _chosen(comparisons: list[Comparison], names: list[str]) -> list[Comparison]:
    known = {each.name: each for each in comparisons}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"Unknown: {', '.join(unknown)}. Known: {', '.join(known)}.")
    return [known[name] for name in names] or comparisons


def _cells(result: Result) -> list[str]:
    comparison, ours, bare = result.comparison, result.ours, result.bare
    return [
        comparison.title, f"{ours.rate:,.0f}", f"{bare.rate:,.0f}", spread(result.ratios, ".2f"),
        f"≥ {comparison.aim}" if comparison.aim else "", ours.percentiles_ms, bare.percentiles_ms,
        f"{median(ours.wal):,.0f} / {median(bare.wal):,.0f}",
    ]  # fmt: skip


def _figures(result: Result) -> dict[str, Any]:
    sides = {"queue": result.ours, "bare": result.bare}
    return {
        name: {"rates": side.rates, "wal": side.wal, "p50 / p99, ms": side.percentiles_ms}
        for name, side in sides.items()
    }


if __name__ == "__main__":
    main()
