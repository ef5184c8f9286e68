"""Results as JSON and as the Markdown tables of the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.measuring import Result, Side

COLUMNS: Final = (
    "work", "queue, messages/s", "bare, messages/s", "ratio (rounds)", "aim",
    "queue p50 / p99, ms", "bare p50 / p99, ms", "WAL, bytes a message: queue / bare",
)  # fmt: skip


def as_json(machine: Mapping[str, str], results: Sequence[Result]) -> dict[str, Any]:
    return {"machine": dict(machine), "results": [_result(each) for each in results]}


def _result(result: Result) -> dict[str, Any]:
    return {
        "name": result.name,
        "target": result.target,
        "ratio": result.ratio,
        "ratios": result.ratios,
        "queue": _side(result.ours),
        "bare": _side(result.bare),
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "messages_per_second": side.rate,
        "p50_seconds": side.percentile(50),
        "p99_seconds": side.percentile(99),
        "wal_bytes_per_message": side.wal,
        "operations": len(side.durations),
    }


def as_markdown(machine: Mapping[str, str], results: Sequence[Result]) -> str:
    """Return two tables: what it was measured on, and what was measured."""
    settings = [_row(["", ""]), _row(["---", "---"]), *(_row(each) for each in machine.items())]
    alignment = ["---", *["--:"] * (len(COLUMNS) - 1)]
    figures = [_row(COLUMNS), _row(alignment), *(_row(_cells(each)) for each in results)]
    return "\n".join([*settings, "", *figures]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(result: Result) -> list[str]:
    ratios = result.ratios
    return [
        result.title,
        f"{result.ours.rate:,.0f}",
        f"{result.bare.rate:,.0f}",
        f"**{result.ratio:.2f}** ({min(ratios):.2f}-{max(ratios):.2f})",
        "" if result.target is None else f"≥ {result.target}",
        _percentiles(result.ours),
        _percentiles(result.bare),
        f"{result.ours.wal:,.0f} / {result.bare.wal:,.0f}",
    ]


def _percentiles(side: Side) -> str:
    return f"{side.percentile(50) * 1000:.2f} / {side.percentile(99) * 1000:.2f}"
