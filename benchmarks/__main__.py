"""Compare every call of the queue with bare SQL for the same work: ``python -m benchmarks``."""

from __future__ import annotations

from argparse import Namespace
from statistics import median
from typing import Final

from benchmarks.bare import create_bare_table
from benchmarks.shared.database import benchmark_database
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.rounds import percentile, ratios, spread
from benchmarks.shared.short_turns import Comparison, Side, compare

HEADER: Final = (
    "work", "queue, messages/s", "bare, messages/s", "ratio (rounds)", "aim",
    "queue p50 / p99, ms", "bare p50 / p99, ms",
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
            ours, bare = compare(each, options.rounds, options.seconds)
            table.add(*_cells(each, ours, bare))
            report.data[each.name] = {"queue": ours.rates, "bare": bare.rates}
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


def _cells(comparison: Comparison, ours: Side, bare: Side) -> list[str]:
    rates = [f"{median(side.rates):,.0f}" for side in (ours, bare)]
    late = [
        " / ".join(f"{percentile(side.durations, each) * 1000:.2f}" for each in (50, 99))
        for side in (ours, bare)
    ]
    ratio = spread(ratios(ours.rates, bare.rates), ".2f")
    aim = f"≥ {comparison.aim}" if comparison.aim else ""
    return [comparison.title, *rates, ratio, aim, *late]


if __name__ == "__main__":
    main()
