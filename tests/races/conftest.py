"""A queue in a database that commits, and two more connections to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection

from delayed_queue import DelayedQueue
from tests.races.concurrency import raw_connection


@pytest.fixture
def queue(transactional_db: None) -> DelayedQueue:
    return DelayedQueue("races")


@pytest.fixture
def impatient(queue: DelayedQueue) -> Iterator[DelayedQueue]:
    """The queue, on a connection that does not wait for locks."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '200ms'")
    yield queue
    connection.close()


@pytest.fixture
def other(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's connection, to hold transactions open on."""
    with raw_connection() as connection:
        yield connection


@pytest.fixture
def admin(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """A connection to watch the others from."""
    with raw_connection() as connection:
        yield connection
