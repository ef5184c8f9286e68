"""The connection of a client, where a WSGI server shows it: gunicorn does."""

from __future__ import annotations

import socket

from django.http import HttpRequest


def socket_of(request: HttpRequest) -> socket.socket | None:
    """Return the client's socket; None under ASGI, TLS, and servers that keep it."""
    found = request.META.get("gunicorn.socket")
    # A TLS socket cannot be peeked at, nor shut down in one direction. Nor can gevent's be trusted.
    return found if type(found) is socket.socket else None


def stop_reading(request: HttpRequest) -> None:
    """Receive no more of the request's body.

    gunicorn discards an unread body before it takes the next request, and would hold its thread
    for five seconds while a client sends none of the rest.
    """
    meta, client = request.META, socket_of(request)
    has_body = meta.get("CONTENT_LENGTH") not in (None, "", "0") or "HTTP_TRANSFER_ENCODING" in meta
    if client is not None and has_body:
        try:
            client.shutdown(socket.SHUT_RD)
        except OSError:  # the client has closed it
            return
