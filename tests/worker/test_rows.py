"""The rows of workers: their sums, and the removal of the silent ones (W12)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from delayed_queue.models import Worker
from delayed_queue.observe.workers import Throughput
from tests.support.concurrency import raw_connection
from tests.support.factories import worker_row

SECOND = timedelta(seconds=1)

pytestmark = pytest.mark.django_db


def names() -> list[str]:
    return list(Worker.objects.order_by("name").values_list("name", flat=True))


def test_w12_only_the_long_silent_are_pruned():
    worker_row("dead", silent_for=20)
    worker_row("silent", silent_for=5)
    worker_row("alive")

    assert Worker.objects.prune(10 * SECOND, 100) == 1
    assert names() == ["alive", "silent"]


def test_w12_pruning_is_bounded_and_takes_the_most_silent_first():
    for age in (1, 3, 2):
        worker_row(f"silent-{age}", silent_for=age)

    assert Worker.objects.prune(timedelta(0), 2) == 2
    assert names() == ["silent-1"]


@pytest.mark.django_db(transaction=True)
def test_w12_pruning_passes_over_a_row_that_another_holds():
    held = worker_row("held", silent_for=9)
    worker_row("free", silent_for=8)
    with connection.cursor() as cursor:  # waiting would end in LockNotAvailable
        cursor.execute("SET lock_timeout = '200ms'")
    with raw_connection() as other, other.transaction():
        other.execute("SELECT FROM delayed_queue_worker WHERE id = %s FOR UPDATE", [held.pk])
        assert Worker.objects.prune(timedelta(0), 1) == 1
    connection.close()
    assert names() == ["held"]


def test_w12_throughput_is_that_of_the_live_by_queue():
    worker_row("a", queues=["orders", "mail"], rates={"orders": 1.5, "gone": 9.0})
    worker_row("b", queues=["orders"], rates={"orders": 2.0})
    worker_row("c", queues=["orders"], rates={"orders": 100.0}, silent_for=40)

    found = Worker.objects.live().throughput

    assert found == {"mail": Throughput(1, 0.0), "orders": Throughput(2, 3.5)}
