"""A queue in a database that commits, and two more connections to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from django.db import connection

from delayed_queue import DelayedQueue, Groups
from delayed_queue.http.jobs.catalogue import forget_topics

# Rules of one group, and how many of its messages pollers may lease at once under them.
LIMITS: Final = [
    (Groups(concurrency=1), 1),
    (Groups(concurrency=3), 3),
    (Groups(order="fifo"), 1),
    (Groups(rate="1/h", burst=2), 2),
    (Groups(queue_rate="1/h", queue_burst=2), 2),
]


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
