"""The admin and the job API."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("queue/", include("delayed_queue.http.urls"))]
