"""The ASGI application of the example project."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

from delayed_queue.api.asgi import GuardedApplication

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
application = GuardedApplication(get_asgi_application())
