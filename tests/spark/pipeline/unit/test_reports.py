"""The words and plots of a report: without a JVM and without a database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from delayed_queue.spark.pipeline import plots, reports
from delayed_queue.spark.pipeline.console import span

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
EMPTY: dict[str, Any] = {
    "created_at": AT.isoformat(), "kinds": [], "throughput": [], "reasons": [], "backlog": [],
}  # fmt: skip
SHARE = {"p50": 0.1, "p90": 1, "p95": 2, "p99": 300, "max": 400}
# Nine kinds, the first with most messages.
FULL: dict[str, Any] = {
    **EMPTY,
    "kinds": [
        {"kind": f"k{each}|json", "messages": 9000 - 1000 * each, "done": 1, "dead": 9,
         "failure_rate": 0.1, "redelivery_rate": 0,
         "lateness_seconds": SHARE if each else None, "latency_seconds": SHARE}
        for each in range(9)
    ],
    "throughput": [
        {"kind": f"k{each}|json", "minute": AT.isoformat(), "messages": each + 1}
        for each in range(9)
    ],
    "reasons": [
        {"kind": "k0|json", "fingerprint": "ab", "reason": "a | " + "x" * 100, "messages": 3}
    ],
    "backlog": [
        {"kind": f"k{each}|json", "due": 1, "hours": [2] * 24, "later": 3} for each in range(9)
    ],
}  # fmt: skip


class TestReports:
    @pytest.mark.parametrize(
        ("seconds", "words"),
        [(0, "0 ms"), (0.25, "250 ms"), (1.5, "1.50 s"), (90, "1.5 min"), (7200, "2.0 h"),
         (172_800, "2.0 d"), (-0.5, "-500 ms")],
    )  # fmt: skip
    def test_time_spans(self, seconds: float, words: str) -> None:
        assert span(seconds) == words

    def test_plots_are_pictures_and_empty_figures_have_none(self) -> None:
        assert plots.draw(EMPTY) == {}
        found = plots.draw(FULL)
        assert set(found) == {"lateness", "throughput", "backlog", "reasons"}
        assert all(data.startswith(b"\x89PNG") for data in found.values())

    def test_what_is_left_over_is_one_line(self) -> None:
        rows = [{"kind": f"k{each}", "due": each, "hours": [1], "later": 0} for each in range(10)]
        colours = plots.colours_of({**EMPTY, "backlog": rows})
        values = {f"k{each}": [each, 1, 0] for each in range(10)}
        stacks = plots.stacks_of(values, colours)
        assert stacks[plots.OTHERS] == [0 + 1 + 2, 3, 0]
        assert list(stacks) == [*(f"k{n}" for n in range(9, 2, -1)), plots.OTHERS]

    def test_a_kind_has_one_colour_whatever_is_shown(self) -> None:
        assert plots.colours_of(FULL) == {
            f"k{each}|json": colour for each, colour in zip(range(7), plots.COLOURS, strict=True)
        }

    def test_markdown_has_a_table_for_each_measure_and_escapes_its_cells(self) -> None:
        text = reports.Report(FULL, {"lateness": b""}).markdown(has_plots=True)
        for title in ("Ended messages", "Why messages died", "Backlog"):
            assert f"\n## {title}\n" in text
        assert "| a \\| xxx" in text
        assert text.endswith("![lateness](lateness.png)")
        assert reports.Report(EMPTY, {}).markdown().endswith("Nothing has ended.")
