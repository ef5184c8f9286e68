"""The words and plots of a report: without a JVM and without a database."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from delayed_queue.spark.jobs import plots
from delayed_queue.spark.jobs.console import span

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


class TestReports:
    @pytest.mark.parametrize(
        ("seconds", "words"),
        [(0, "0 ms"), (0.25, "250 ms"), (1.5, "1.50 s"), (90, "1.5 min"), (7200, "2.0 h"),
         (172_800, "2.0 d"), (-0.5, "-500 ms")],
    )  # fmt: skip
    def test_time_spans(self, seconds: float, words: str) -> None:
        assert span(seconds) == words

    def test_plots_are_pictures_and_empty_figures_have_none(self) -> None:
        empty = {"created_at": AT.isoformat(), "kinds": [], "throughput": [], "reasons": [],
                 "backlog": []}  # fmt: skip
        assert plots.draw(empty) == {}
        share = {"p50": 0.1, "p90": 1, "p95": 2, "p99": 300, "max": 400}
        figures = {
            **empty,
            "kinds": [{"kind": f"k{each}|json", "lateness_seconds": share} for each in range(9)],
            "throughput": [
                {"kind": f"k{each}|json", "minute": AT.isoformat(), "messages": each + 1}
                for each in range(9)
            ],
            "reasons": [{"kind": "k|json", "reason": "x" * 100, "messages": 3}],
            "backlog": [
                {"kind": f"k{each}|json", "due": 1, "hours": [2] * 24, "later": 3}
                for each in range(9)
            ],
        }
        found = plots.draw(figures)
        assert set(found) == {"lateness", "throughput", "backlog", "reasons"}
        assert all(data.startswith(b"\x89PNG") for data in found.values())

    def test_what_is_left_over_is_one_line(self) -> None:
        rows = [{"kind": f"k{each}", "due": each, "hours": [1], "later": 0} for each in range(10)]
        stacks = dict(plots.stacks_of(rows, plots.largest_of({f"k{n}": n for n in range(10)})))
        assert stacks[plots.OTHERS] == [0 + 1 + 2, 3, 0]
        assert len(stacks) == plots.MOST_KINDS + 1
