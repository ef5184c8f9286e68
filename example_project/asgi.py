"""The ASGI application of the example project."""

from __future__ import annotations

import os

from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

from delayed_queue.api.asgi import GuardedApplication

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
application = get_asgi_application()
if settings.DEBUG:  # elsewhere static files are the web server's
    application = ASGIStaticFilesHandler(application)
application = GuardedApplication(application)
