"""URLs of the example project: the admin, and a way to it; the notifications."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from example_project.notifications.api import api as notifications

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("v1/", notifications.urls),
]
