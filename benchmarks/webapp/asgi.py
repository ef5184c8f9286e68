"""The ASGI application, as the documentation says."""

from __future__ import annotations

from django.core.asgi import get_asgi_application

from delayed_queue.http.api.asgi import GuardedApplication

application = GuardedApplication(get_asgi_application(), prefix="/queue/")
slow = GuardedApplication(get_asgi_application(), prefix="/queue/", middleware=True)
