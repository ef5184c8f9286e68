"""The URLs of the HTTP API: ``path("queue/", include("delayed_queue.http.urls"))``."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, path
from django.urls.resolvers import RoutePattern

from delayed_queue.exceptions import ExtraNotInstalled, needing
from delayed_queue.http.apps import missing_extra


class _Missing(URLPattern):
    """Stands for the API where its extra is not installed: the rest of the site keeps working."""

    def __init__(self, error: ExtraNotInstalled) -> None:
        self._error = error
        super().__init__(RoutePattern("<path:any>"), self._refuse)

    def _refuse(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        raise self._error

    def check(self) -> list[CheckMessage]:
        return [missing_extra(self._error)]


def _patterns() -> list[URLPattern | URLResolver]:
    with needing("http", "delayed_queue.http.urls"):
        from delayed_queue.http.api.endpoints import pooled_path
        from delayed_queue.http.api.service import healthz, metrics, readyz, service
    return [
        path("v1/", service.urls),
        path("healthz", healthz, name="healthz"),
        pooled_path("readyz", readyz, "readyz"),
        pooled_path("metrics", metrics, "metrics"),
    ]


try:
    urlpatterns = _patterns()
except ExtraNotInstalled as error:
    urlpatterns = [_Missing(error)]
