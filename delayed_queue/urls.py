"""The URLs of the HTTP API: ``path("queue/", include("delayed_queue.urls"))``."""

from __future__ import annotations

from django.urls import path

from delayed_queue.api.health import healthz, metrics, readyz
from delayed_queue.api.service import make_service

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
    path("v1/", make_service().urls),
]
