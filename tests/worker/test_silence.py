"""TCP itself detects half-open connections of workers (W17)."""

from __future__ import annotations

import socket

import pytest
from django.db import connection

from delayed_queue.db.silence import limit_silence
from tests.support.proxied import proxied, proxy
from tests.support.proxy import Proxy

__all__ = ["proxied", "proxy"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("proxied")
def test_connections_of_a_worker_bound_every_silence(proxy: Proxy) -> None:
    limit_silence("default")
    connection.ensure_connection()
    with socket.fromfd(connection.connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as found:
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
