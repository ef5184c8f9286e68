"""A queue whose connections pass through a proxy, with a backoff of milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import psycopg
import pytest
from django.db import connections
from pytest_django import Settings

from delayed_queue import DelayedQueue
from delayed_queue.retries import Backoff
from tests.settings import EVERY_TOPIC
from tests.support.programs import ROUNDS
from tests.support.proxies import proxied as proxied_server
from tests.support.proxy import Proxy

BACKOFF: Final = Backoff(
    retries=3,
    initial=timedelta(milliseconds=10),
    maximum=timedelta(seconds=1),
    deadline=timedelta(seconds=10),
)


@pytest.fixture(params=ROUNDS)
def each_round(request: pytest.FixtureRequest) -> None:
    """Run the test once per round."""


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[Proxy]:
    """A proxy to the test database's server, on TCP or on a socket."""
    with proxied_server() as proxy:
        yield proxy


@pytest.fixture
def proxied(
    proxy: Proxy,
    other: psycopg.Connection[Any],
    admin: psycopg.Connection[Any],
    settings: Settings,
    request: pytest.FixtureRequest,
) -> Iterator[None]:
    """Route all further connections of Django through the proxy; a parameter adds options.

    It replaces the default alias itself, because Django's tests block unknown aliases.
    """
    settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {
        "BACKOFF": BACKOFF,
        "API": {"TOPICS": EVERY_TOPIC},
    }
    found = connections["default"].settings_dict
    kept = dict(found)
    options = {"sslmode": "disable", "gssencmode": "disable", **getattr(request, "param", {})}
    connections["default"].close()
    found |= {
        "HOST": "127.0.0.1",
        "PORT": proxy.port,
        "OPTIONS": {**found.get("OPTIONS", {}), **options},
    }
    yield
    connections["default"].close()
    found |= kept


@pytest.fixture
def queue(proxied: None) -> DelayedQueue:
    return DelayedQueue("faults")
