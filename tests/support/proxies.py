"""A proxy to the server of Django's default alias, on TCP or on a socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connections

from tests.support.proxy import Proxy


@contextmanager
def proxied() -> Iterator[Proxy]:
    found = connections["default"].settings_dict
    host, port = found["HOST"] or "127.0.0.1", int(found["PORT"] or 5432)
    if host.startswith("/"):
        proxy = Proxy(socket.AF_UNIX, str(Path(host) / f".s.PGSQL.{port}"))
    else:
        proxy = Proxy(socket.AF_INET, (socket.gethostbyname(host), port))
    try:
        yield proxy
    finally:
        proxy.stop()
