"""The report as lines for people and as JSON values for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from example_project.demo.orders.report import Report


def rows(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the lines of the report, each with its name."""
    facts, figures, found = report.facts, report.figures, report.comparison
    rejects = f", {facts.rejects:,} lines rejected" if facts.rejects else ""
    yield "input", f"{facts.input}: {found.orders:,} orders{rejects}"
    yield "offered", f"{facts.offered:>7,}  messages, {facts.speed:,.3g}x faster than in the file"
    yield "dropped", f"{figures.dropped:>7,}  paid in time{_payments(report)}"
    yield "closed", f"{figures.closed:>7,}  unpaid at their deadline"
    yield "dead", f"{figures.dead:>7,}  {_reasons(report)}".rstrip()
    yield "delivered", f"{figures.delivered:>7,}  times: {_deliveries(report)}"
    yield "lateness", f"{figures.lateness} (from due to handler)"
    yield "slowest closing", f"{report.slowest_closing.total_seconds():.1f} s after its deadline"
    yield "sales reports", f"{report.ticks.before} every 5 s, then {report.ticks.after} every 3 s"
    if facts.kill is not None:
        after = facts.kill.after.total_seconds()
        yield "killed", f"worker {facts.kill.worker} with SIGKILL after {after:.0f} s"
    elif facts.wants_kill:
        yield "killed", "nobody: no worker was seen with a message in flight"
    yield "took", f"{facts.took.total_seconds():.0f} s"


def _payments(report: Report) -> str:
    found = report.comparison
    late = f"; {found.late_payments:,} came too late" if found.late_payments else ""
    if found.missed_payments:
        late += f"; {found.missed_payments:,} more, as this machine did not keep up"
    return f"{late} and were refused" if late else ""


def _deliveries(report: Report) -> str:
    figures = report.figures
    cause = "after the kill" if report.facts.kill else "after a lease ran out"
    return (
        f"{figures.first:,} first, {figures.retried:,} retried, "
        f"{figures.redelivered:,} redelivered {cause}"
    )


def _reasons(report: Report) -> str:
    return "; ".join(f"{count:,} {reason}" for reason, count in report.dead_reasons.items())


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON values; durations in seconds, lateness in milliseconds."""
    facts, figures, found = report.facts, report.figures, report.comparison
    return {
        "input": facts.input,
        "orders": found.orders,
        "rejected_lines": facts.rejects,
        "rejects_path": facts.rejects_path,
        "offered": facts.offered,
        "paid": found.paid,
        "dropped": figures.dropped,
        "late_payments": found.late_payments,
        "missed_payments": found.missed_payments,
        "closed": found.closed,
        "closed_twice": len(report.closed_twice),
        "dead": found.dead,
        "dead_reasons": report.dead_reasons,
        "lost": len(found.lost),
        "delivered": figures.delivered,
        "first": figures.first,
        "retried": figures.retried,
        "redelivered": figures.redelivered,
        "lateness_ms": {
            "p50": round(figures.late_p50, 3),
            "p99": round(figures.late_p99, 3),
            "max": round(figures.late_max, 3),
        },
        "slowest_closing_seconds": report.slowest_closing.total_seconds(),
        "sales_reports": {"before_edit": report.ticks.before, "after_edit": report.ticks.after},
        "speed": facts.speed,
        "seconds": facts.took.total_seconds(),
        "kill": _kill(report),
    }


def _kill(report: Report) -> dict[str, Any] | None:
    kill, returns = report.facts.kill, report.facts.returns
    if kill is None or returns is None:
        return None
    return {"worker": kill.worker, "after_seconds": kill.after.total_seconds(), **asdict(returns)}
