"""The ASGI application of the tests' servers."""

from __future__ import annotations

from django.core.asgi import get_asgi_application

from delayed_queue.http.api.asgi import GuardedApplication

application = GuardedApplication(get_asgi_application(), prefix="/", middleware=True)
direct = GuardedApplication(get_asgi_application(), prefix="/")
