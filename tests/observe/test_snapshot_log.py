"""Who holds an old snapshot is in the log of one worker: once when found, once when gone."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from delayed_queue.models import Worker
from delayed_queue.observe.snapshots import SnapshotWatch
from delayed_queue.worker.heartbeat import Heartbeat, Snapshot
from tests.support.concurrency import raw_connection
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_is_told_once_when_it_is_there_and_once_when_it_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "delayed_queue")
    watch = SnapshotWatch("default", limit=timedelta(0), interval=0.0)
    with raw_connection() as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM delayed_queue")
        pid = other.info.backend_pid

        def lines() -> list[str]:
            watch.look(lambda: True)
            found = [each.getMessage() for each in caplog.records]
            return [each for each in found if f'holder="session {pid}' in each]

        # Who wrote before it in another database, of another test, is older until it ends.
        wait_until(lines)
        assert len(lines()) == len(lines()) == 1
        other.execute("COMMIT")
    lines()
    held, gone = lines()
    assert held.startswith("event=snapshot_held ")
    assert f'ends="SELECT pg_terminate_backend({pid});"' in held
    assert gone == f'event=snapshot_gone holder="session {pid}"'


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
