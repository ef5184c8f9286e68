"""The ASGI applications: wrapped as documented, and without the wrapper."""

from __future__ import annotations

from django.conf import settings
from django.core.asgi import get_asgi_application

from delayed_queue.http.api.asgi import GuardedApplication

# A view gets a new connection for each request under ASGI, so none must stay open.
settings.DATABASES["default"]["CONN_MAX_AGE"] = 0
plain = get_asgi_application()
application = GuardedApplication(plain, prefix="/queue/")
