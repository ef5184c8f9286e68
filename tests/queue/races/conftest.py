"""A queue in a database that commits, and two more connections to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from delayed_queue import DelayedQueue
from delayed_queue.http.jobs.catalogue import forget_topics


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
def new_process(transactional_db: None) -> Iterator[None]:
    forget_topics()
    yield
    forget_topics()
