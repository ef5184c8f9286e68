"""The ASGI application of the example project."""

from __future__ import annotations

import os

from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

from delayed_queue.http.api.asgi import GuardedApplication

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
django = get_asgi_application()
# Elsewhere static files are the web server's.
application = GuardedApplication(
    ASGIStaticFilesHandler(django) if settings.SERVE_STATIC else django,
    prefix=("/queue/", "/v1/"),
)
