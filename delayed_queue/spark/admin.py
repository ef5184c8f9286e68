"""The pipeline's reports: the last one, its plots, and the few before it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.formats import number, percent, seconds
from delayed_queue.admin.lists import ListAdmin
from delayed_queue.admin.rows import find
from delayed_queue.spark.models import PipelineReport

_PLOTS: Final = {
    "lateness": _("Lateness by kind"),
    "hours": _("Lateness by hour"),
    "throughput": _("Throughput"),
    "backlog": _("Backlog, and when it falls due"),
    "attempts": _("Attempts"),
    "reasons": _("Why messages died"),
    "funnel": _("Outcomes of campaigns"),
}
_LISTED: Final = 30
_BACKLOG: Final = (
    _("Due then"), _("Within 1 h"), _("Within 6 h"), _("Within 24 h"), _("Later"),
)  # fmt: skip
_SPANS: Final = ("p50", "p95", "p99", "max")


@admin.register(PipelineReport)
class PipelineReportAdmin(ListAdmin):
    """One page; ``manage.py queuepipeline report`` makes what it shows."""

    def get_urls(self) -> list[URLPattern]:
        plot = self.admin_site.admin_view(self.plot_view)
        name = "delayed_queue_spark_pipelinereport_plot"
        return [path("<int:pk>/<slug:plot>.png", plot, name=name), *super().get_urls()]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return self._report_page(request, None)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return self._report_page(request, object_id)

    def plot_view(self, request: HttpRequest, pk: int, plot: str) -> HttpResponse:
        """Answer with a plot as PNG."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = self._report(request, str(pk))
        data = found.plots.get(plot) if found is not None and plot in _PLOTS else None
        if data is None:
            raise Http404
        try:
            image = base64.b64decode(data, validate=True)
        except binascii.Error:
            raise Http404 from None
        # A stored plot never changes.
        headers = {"Cache-Control": "private, max-age=86400, immutable"}
        return HttpResponse(image, content_type="image/png", headers=headers)

    def _report(self, request: HttpRequest, object_id: str | None) -> PipelineReport | None:
        rows = self.get_queryset(request)
        if object_id is None:
            return rows.order_by("-id").first()
        found: PipelineReport | None = find(rows, object_id)
        return found

    def _report_page(self, request: HttpRequest, object_id: str | None) -> HttpResponse:
        report = self._report(request, object_id)
        rows = self.get_queryset(request).order_by("-id").values_list("id", "created_at")
        context = {
            "title": _("Pipeline report"),
            "report": report,
            "earlier": list(rows[:_LISTED]),
            **({} if report is None else _shown(report)),
        }
        response = self.page(request, "delayed_queue_spark/report", context)
        if object_id is not None and report is None:
            raise Http404
        return response


def _shown(report: PipelineReport) -> dict[str, Any]:
    figures = report.figures
    kinds = figures.get("kinds", ())
    return {
        # Not so in reports of before.
        "are_dead_apart": any("dead_lateness_seconds" in each for each in kinds),
        "kinds": [_kind(each) for each in kinds],
        "reasons": [
            {**each, "messages": number(each["messages"])} for each in figures.get("reasons", ())
        ],
        "backlog": [_backlog(each) for each in figures.get("backlog", ())],
        "since": _instant(figures.get("since")),
        "until": _instant(figures.get("until")),
        "plots": [(name, title) for name, title in _PLOTS.items() if name in report.plots],
    }


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _kind(each: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": each["kind"],
        "counts": [
            (label, number(each[name]))
            for label, name in ((_("Ended"), "messages"), (_("Done"), "done"), (_("Dead"), "dead"))
        ],
        "has_dead": each["dead"] > 0,
        "rates": [
            (label, percent(each[name], 2))
            for label, name in ((_("Failed"), "failure_rate"), (_("Again"), "redelivery_rate"))
        ],
        "spans": [
            *_spans(_("Late"), each["lateness_seconds"]),
            *_spans(_("Took"), each["latency_seconds"]),
        ],
    }


def _spans(what: Any, found: Mapping[str, float] | None) -> list[tuple[str, str]]:
    return [(f"{what} {each}", "—" if found is None else seconds(found[each])) for each in _SPANS]


def _backlog(each: Mapping[str, Any]) -> dict[str, Any]:
    hours = each["hours"]
    counts = (each["due"], hours[0], sum(hours[:6]), sum(hours), each["later"])
    return {"kind": each["kind"], "counts": list(zip(_BACKLOG, map(number, counts), strict=True))}
