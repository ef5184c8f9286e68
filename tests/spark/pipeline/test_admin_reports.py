"""The page of the pipeline's reports: the last one, its plots, and its permissions (P9)."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from delayed_queue.spark.models import PipelineReport
from tests.admin.support import operator, page

pytestmark = pytest.mark.django_db

REPORTS = "/admin/delayed_queue_spark/pipelinereport/"
PNG = b"\x89PNG and so on"
SPANS = {"p50": 0.25, "p90": 1.0, "p95": 90.0, "p99": 7200.0, "max": 7200.0}
FIGURES: dict[str, Any] = {
    "created_at": "2026-05-01T12:00:00+00:00",
    "since": "2026-04-01T00:00:00+00:00",
    "kinds": [
        {"kind": "orders|json", "messages": 1234, "done": 1200, "dead": 34, "failure_rate": 0.0275,
         "redelivery_rate": 0.5, "lateness_seconds": SPANS, "latency_seconds": None}
    ],
    "reasons": [{"kind": "orders|json", "reason": "<b>rejected</b>", "messages": 34}],
    "backlog": [{"kind": "mail|json", "due": 7, "hours": [1] * 24, "later": 9}],
}  # fmt: skip


def kept(number: int = 1, **figures: Any) -> PipelineReport:
    return PipelineReport.objects.create(
        created_at=datetime(2026, 5, number, 12, tzinfo=UTC),
        figures={**FIGURES, **figures},
        plots={"lateness": base64.b64encode(PNG).decode(), "broken": "%", "backlog": "%"},
    )


def test_the_last_report_is_shown_with_its_figures_in_words() -> None:
    kept(1, kinds=[])
    kept(2)
    html = page(operator("view_pipelinereport"), REPORTS)
    assert "Made 2026-05-02 12:00:00" in html
    for words in ("1,234", "2.75%", "50.00%", "250 ms", "2.0 h", "since 2026-04-01",
                  "Late p50", "Due then", "&lt;b&gt;rejected"):  # fmt: skip
        assert words in html, words
    assert html.count("<img") == 2


def test_the_page_of_a_row_is_that_of_the_last_report() -> None:
    kept(1, kinds=[], reasons=[], backlog=[])
    client = operator("view_pipelinereport")
    for path in ("", "7/change/"):
        assert "Nothing had ended." in page(client, f"{REPORTS}{path}")


def test_plots_are_pictures_for_those_who_may_see_the_report() -> None:
    report = kept()
    client = operator("view_pipelinereport")
    answer = client.get(f"{REPORTS}{report.pk}/lateness.png")
    assert (answer["Content-Type"], answer.content) == ("image/png", PNG)
    for name in ("broken", "backlog", "nothing"):
        assert client.get(f"{REPORTS}{report.pk}/{name}.png").status_code == 404
    assert client.get(f"{REPORTS}99999/lateness.png").status_code == 404


@pytest.mark.parametrize("path", ["", "{pk}/lateness.png"])
def test_others_see_nothing(path: str) -> None:
    url = REPORTS + path.format(pk=kept().pk)
    assert operator("view_message").get(url).status_code == 403
    assert Client().get(url).status_code == 302


def test_nothing_can_be_changed() -> None:
    report = kept()
    client = operator("view_pipelinereport", "delete_pipelinereport", "change_pipelinereport")
    assert client.post(f"{REPORTS}{report.pk}/delete/", {"post": "yes"}).status_code in {403, 404}
    client.post(REPORTS, {"action": "delete_selected", "_selected_action": [report.pk]})
    report.refresh_from_db()
    assert report.figures == FIGURES
    assert client.get(f"{REPORTS}add/").status_code == 403


def test_without_any_it_says_how_to_make_one(admin_client: Client) -> None:
    assert "queuepipeline report" in page(admin_client, REPORTS)
