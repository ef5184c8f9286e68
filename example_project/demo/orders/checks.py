"""What must hold after a run, each check a plain statement."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Final

from example_project.demo.acts import Check, none_of
from example_project.demo.orders.killing import Returns
from example_project.demo.orders.report import Report
from example_project.demo.orders.sales import Ticks

# By the signal itself: a worker that was still starting up, and held nothing yet.
CLEAN_EXITS: Final = (0, -signal.SIGTERM)


def check(report: Report) -> list[Check]:
    """Return every check; the run is good if all have passed."""
    return [
        *_of_orders(report),
        *_of_messages(report),
        *_of_ticks(report.ticks),
        *_of_processes(report),
    ]


def _of_orders(report: Report) -> Iterator[Check]:
    found = report.comparison
    ends = f"{found.paid:,} paid + {found.closed:,} closed + {found.dead:,} dead"
    yield none_of("lost", found.lost, f"{ends} = {found.orders:,} orders in the file")
    yield none_of(
        "closed twice",
        report.closed_twice,
        f"{report.closings:,} closings for {report.figures.closed:,} closed orders",
        and_also=report.closings == report.figures.closed,
    )
    yield none_of("closed early", report.closed_early, "never before the deadline")
    yield none_of("wrongly paid", found.wrongly_paid, "only what the file pays before its deadline")
    yield none_of("altered", found.altered, "customer, amount, currency as in the file")


def _of_messages(report: Report) -> Iterator[Check]:
    figures, found = report.figures, report.comparison
    yield Check(
        "offered",
        found.orders == figures.orders == report.facts.offered,
        f"{report.facts.offered:,} messages for {figures.orders:,} orders in the database",
    )
    yield Check(
        "dead letters",
        found.dead == figures.dead,
        f"{figures.dead:,}, one for each of the {found.dead:,} orders left open",
    )
    yield Check("queue empty", figures.messages == 0, f"{figures.messages:,} messages left in it")


def _of_ticks(ticks: Ticks) -> Iterator[Check]:
    ran = f"{ticks.before} before the edit, {ticks.after} after it"
    yield none_of("ticks lost", ticks.lost, ran, and_also=ticks.before + ticks.after > 0)
    yield none_of("ticks twice", ticks.twice, "each planned time has one sales report")
    yield none_of("outdated ticks", ticks.outdated, "none of the old schedule after the edit")


def _of_processes(report: Report) -> Iterator[Check]:
    facts = report.facts
    if facts.returns is not None:
        yield _kill(facts.returns)
    codes = ", ".join(map(str, facts.exit_codes))
    well = bool(facts.exit_codes) and all(code in CLEAN_EXITS for code in facts.exit_codes)
    yield Check("workers stopped", well, f"on SIGTERM, with exit codes {codes}")


def _kill(returns: Returns) -> Check:
    came_back = f"{returns.came_back} of {returns.in_flight} messages in flight came back"
    within = f", the last after {returns.seconds:.1f} s" if returns.came_back else ""
    return Check("killed worker", returns.came_back == returns.in_flight, came_back + within)
