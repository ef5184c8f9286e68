"""The words and plots of a report: without a JVM and without a database."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.pipeline import plots, reports
from delayed_queue.spark.pipeline.console import span
from delayed_queue.spark.pipeline.figures import Campaign

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
         "dropped": 0, "expired": 2, "failure_rate": 0.1, "redelivery_rate": 0,
         "lateness_seconds": SHARE if each else None, "latency_seconds": SHARE,
         "dead_lateness_seconds": None if each else SHARE}
        for each in range(9)
    ],
    "throughput": [
        {"kind": f"k{each}|json", "minute": AT.isoformat(), "messages": each + 1}
        for each in range(9)
    ],
    "hours": [
        {"kind": f"k{each}|json", "hour": AT.isoformat(), "messages": 1, **SHARE}
        for each in range(9)
    ],
    "attempts": [
        {"kind": f"k{each}|json", "done": [7] * 11, "dead": [0] * 10 + [1]} for each in range(9)
    ],
    "reasons": [
        {"kind": "k0|json", "fingerprint": "ab", "reason": "<b>" + "x" * 100, "messages": 3}
    ],
    "funnel": [
        {"campaign": name, "offered": 9, "due": 8, "done": 5, "dead": 1, "dropped": 0, "expired": 2}
        for name in ("spring", None)
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
        assert set(found) == {
            "lateness", "hours", "throughput", "backlog", "attempts", "reasons", "funnel",
        }  # fmt: skip
        assert all(data.startswith(b"\x89PNG") for data in found.values())

    def test_plots_of_a_report_of_an_earlier_release(self) -> None:
        known = ("created_at", "kinds", "throughput", "reasons", "backlog")
        found = plots.draw({name: FULL[name] for name in known})
        assert set(found) == {"lateness", "throughput", "backlog", "reasons"}

    def test_what_is_left_over_is_one_line(self) -> None:
        rows = [{"kind": f"k{each}", "due": each, "hours": [1], "later": 0} for each in range(10)]
        colours = plots.colours_of({**EMPTY, "backlog": rows})
        values = {f"k{each}": [each, 1, 0] for each in range(10)}
        stacks = dict(plots.stacks_of(values, colours))
        assert stacks[plots.OTHERS] == [0 + 1 + 2, 3, 0]
        assert list(stacks) == [*(f"k{n}" for n in range(9, 2, -1)), plots.OTHERS]

    def test_a_kind_has_one_colour_whatever_is_shown(self) -> None:
        assert plots.colours_of(FULL) == {
            f"k{each}|json": colour for each, colour in zip(range(7), plots.COLOURS, strict=True)
        }

    @pytest.mark.parametrize(
        "text", ["header:", "campaign", "key:a", "payload:a'b", 'header:a"b', "header:a\\b", ""]
    )
    def test_a_campaign_that_names_nothing_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidConfiguration, match="neither header:NAME nor payload:FIELD"):
            Campaign.of(text)

    def test_a_field_may_be_in_another_and_a_header_may_have_a_dot(self) -> None:
        assert Campaign.of("payload:order.campaign").path == "$['order']['campaign']"
        assert Campaign.of("header:x.campaign").path == "$['x.campaign']"


class TestPage:
    """One file of HTML, whatever texts are in it."""

    def test_has_tables_and_plots_and_loads_nothing(self) -> None:
        html = plots.page(FULL, reports.tables_of(FULL))
        for words in (
            "Ended messages",
            "Dead letters",
            "Campaigns",
            "Attempts",
            "Backlog",
            "&lt;b&gt;",
        ):
            assert words in html, words
        assert html.count("<svg ") == 7
        assert "<b>" not in html
        for words in ("<script", "<img", " src=", "@import", "url(http"):
            assert words not in html, words
        # In the page's ink and on its ground: for light and dark.
        assert "#000000" not in html
        assert "currentColor" in html

    def test_of_nothing(self) -> None:
        html = plots.page(EMPTY, reports.tables_of(EMPTY))
        assert "Nothing has ended." in html
        assert reports.words_of(EMPTY)[-1] == "Nothing has ended."


class TestComparison:
    def test_pairs_what_was_and_what_is(self, tmp_path: Path) -> None:
        earlier = {**FULL, "created_at": "2026-02-01T00:00:00+00:00",
                   "kinds": [{**FULL["kinds"][0], "dead": 5}, {**FULL["kinds"][1], "kind": "gone"}],
                   "reasons": [{**FULL["reasons"][0], "messages": 1}]}  # fmt: skip
        (tmp_path / "report.json").write_text(json.dumps(earlier))
        found = reports.compared(FULL, reports.earlier_report(tmp_path))
        by_kind = {each["kind"]: each for each in found["kinds"]}
        assert by_kind["k0|json"]["dead"] == [5, 9]
        assert by_kind["gone"]["messages"] == [8000, None]
        assert by_kind["k2|json"]["lateness_seconds"]["p95"] == [None, 2]
        assert [each["messages"] for each in found["reasons"]] == [[1, 3]]
        words = "\n".join(reports.words_of({**FULL, "compared": found}))
        assert "5 → 9" in words
        assert "1 → 3" in words
        assert "counts dead letters" not in words

    def test_an_earlier_one_of_another_form_is_said(self) -> None:
        old = [{name: each[name] for name in each if name != "dead_lateness_seconds"}
               for each in FULL["kinds"]]  # fmt: skip
        found = reports.compared(FULL, {**FULL, "kinds": old})
        lines = reports.words_of({**FULL, "compared": found})
        assert "The earlier one counts dead letters in its times." in lines

    @pytest.mark.parametrize("text", [None, "", "[]", "{}", "7", '{"kinds": []}'])
    def test_what_is_no_report_is_refused(self, tmp_path: Path, text: str | None) -> None:
        path = tmp_path / "report.json"
        if text is not None:
            path.write_text(text)
        with pytest.raises(InvalidConfiguration, match="--compare"):
            reports.earlier_report(path)
