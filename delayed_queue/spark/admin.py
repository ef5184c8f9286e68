"""The page of the pipeline's last report, and its plots."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from itertools import compress
from typing import Any, Final

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.lists import ListAdmin
from delayed_queue.spark.models import PipelineReport
from delayed_queue.spark.pipeline.measures import Table, tables_of

_PLOTS: Final = {
    "lateness": _("Lateness by kind"),
    "throughput": _("Throughput"),
    "backlog": _("Backlog, and when it falls due"),
    "reasons": _("Why messages died"),
}
# Titles and heads of the report's tables, translated.
_WORDS: Final = {
    "Ended messages": _("Ended messages"), "Why messages died": _("Why messages died"),
    "Backlog": _("Backlog"), "kind": _("Kind"), "ended": _("Ended"), "done": _("Done"),
    "dead": _("Dead"), "failed": _("Failed"), "again": _("Again"), "messages": _("Messages"),
    "reason": _("Reason"), "due now": _("Due then"), "1 h": _("Within 1 h"),
    "6 h": _("Within 6 h"), "24 h": _("Within 24 h"), "later": _("Later"),
    "late": _("Late"), "took": _("Took"),
}  # fmt: skip


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
        report = self.get_queryset(request).order_by("id").last()
        context: dict[str, Any] = {"title": _("Pipeline report"), "report": report}
        if report is not None:
            ends = {name: report.figures.get(name) for name in ("since", "until")}
            context |= {
                **{name: datetime.fromisoformat(text) for name, text in ends.items() if text},
                "tables": [_translated(each) for each in tables_of(report.figures)],
                "plots": [each for each in _PLOTS.items() if each[0] in report.plots],
            }
        return self.page(request, "delayed_queue_spark/report", context)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return self.changelist_view(request)

    def plot_view(self, request: HttpRequest, pk: int, plot: str) -> HttpResponse:
        """Return a plot as PNG."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        report = self.get_queryset(request).filter(pk=pk).first()
        try:
            image = base64.b64decode(report.plots[plot], validate=True) if report else b""
        except (KeyError, binascii.Error):
            image = b""
        if not image:
            raise Http404
        # A stored plot never changes.
        headers = {"Cache-Control": "private, max-age=86400, immutable"}
        return HttpResponse(image, content_type="image/png", headers=headers)


def _translated(table: Table) -> dict[str, Any]:
    # Without a percentile, the table fits a page of 1,366 pixels.
    shown = [not each.endswith(" p95") for each in table.head]
    heads = [(_head(each), number < table.texts) for number, each in enumerate(table.head)]
    heads = list(compress(heads, shown))
    lines = [
        {"name": name, "cells": list(zip(heads[1:], cells, strict=True))}
        for name, *cells in (compress(row, shown) for row in table.rows)
    ]
    return {"title": _WORDS[table.title], "heads": heads, "lines": lines}


def _head(text: str) -> str:
    """Return the head of a column; that of a percentile is two words, as in ``late p50``."""
    if text in _WORDS:
        return str(_WORDS[text])
    word, _space, share = text.partition(" ")
    return f"{_WORDS[word]} {share}"
