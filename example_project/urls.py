"""URLs of the example project: the admin, the job API, the notifications."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from delayed_queue.notifications.api import api as notifications

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("queue/", include("delayed_queue.http.urls")),
    path("v1/", notifications.urls),
]
