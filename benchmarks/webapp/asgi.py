"""The ASGI application, as the documentation says."""

from __future__ import annotations

from django.core.asgi import get_asgi_application

from delayed_queue.http.api.asgi import GuardedApplication

plain = get_asgi_application()
application = GuardedApplication(plain, prefix="/queue/")
