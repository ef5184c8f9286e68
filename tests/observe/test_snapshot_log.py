"""One worker logs the holder of an old snapshot: once when found, once when gone."""

from __future__ import annotations

import logging
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from delayed_queue.models import Worker
from delayed_queue.observe.snapshots import SnapshotWatch
from delayed_queue.worker.engine.heartbeat import Heartbeat, Snapshot
from tests.support.concurrency import raw_connection
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_is_told_once_when_it_is_there_and_once_when_it_is_gone(caplog):
    caplog.set_level(logging.INFO, "delayed_queue")
    watch = SnapshotWatch("default", limit=timedelta(0), interval=0.0)
    with raw_connection() as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM delayed_queue")
        pid = other.info.backend_pid

        def told() -> list[str]:
            watch.look(lambda: True)
            return [each.getMessage() for each in caplog.records]

        held, gone = (f'event=snapshot_{what} holder="session {pid}' for what in ("held", "gone"))
        # Tests in other databases of this server hold older snapshots for moments.
        wait_until(lambda: any(each.startswith(held) for each in told()))
        told()
        other.execute("COMMIT")
    wait_until(lambda: f'{gone}"' in told())
    lines = told()
    remedy = f'ends="SELECT pg_terminate_backend({pid});"'
    assert all(remedy in each for each in lines if each.startswith(held))
    # A holder is logged again only if another one was logged between.
    for before, after in pairwise(lines):
        assert not (after.startswith(held) and f'holder="session {pid}' in before)


def test_who_is_not_the_first_asks_nothing(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        SnapshotWatch("default", interval=0.0).look(lambda: False)


def test_the_first_is_the_worker_of_the_longest_standing_that_is_alive() -> None:
    def describe() -> Snapshot:
        return Snapshot("w", queues=["orders"])

    beats = [Heartbeat("default", describe) for _ in range(3)]
    for each in beats:
        each.beat()
    assert [each.is_first() for each in beats] == [True, False, False]
    oldest = Worker.objects.order_by("pk")[0]
    oldest.heartbeat_at -= timedelta(minutes=1)
    oldest.save()
    assert [each.is_first() for each in beats[1:]] == [True, False]
