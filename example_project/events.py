"""Events of the demo's mail provider: a signed text, as `signed` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from django.core import signing
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from delayed_queue.notifications.events import Event, Kind

_SALT: Final = "example_project.events"


def signed(kind: Kind, message_id: str) -> bytes:
    """Return the body of a request to ``/v1/events/demo``."""
    at = datetime.now(UTC).timestamp()
    return signing.dumps([kind, at, message_id], salt=_SALT).encode()


class SignedEvents:
    """Reads one event per request."""

    def read(self, request: HttpRequest) -> Iterable[Event]:
        try:
            kind, at, message_id = signing.loads(request.body.decode(), salt=_SALT)
        except (signing.BadSignature, UnicodeDecodeError) as error:
            raise PermissionDenied from error
        return [Event(Kind(kind), datetime.fromtimestamp(at, UTC), message_id)]
