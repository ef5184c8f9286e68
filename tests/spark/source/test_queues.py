"""Messages that a drain cannot take, on PostgreSQL, without Spark."""

from __future__ import annotations

from contextlib import closing

import pytest

from delayed_queue import DelayedQueue, Groups
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import DeadLetter
from delayed_queue.spark.database import connect
from delayed_queue.spark.pipeline.cli import main
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.source.queues import check_known, left_behind, start_of

KIND = "orders|json"


def start() -> None:
    with closing(connect(Options())) as session:
        start_of(session, KIND)


def check(kind: str) -> None:
    with closing(connect(Options())) as session:
        check_known(session, kind)


class TestKnown:
    def test_a_mistyped_name_is_refused_with_the_one_that_was_meant(self, queue: DelayedQueue):
        queue.offer_or_update("a", 1)
        check(KIND)
        with pytest.raises(InvalidConfiguration, match=r"Did you mean 'orders\|json'\? There are"):
            check("oders|json")

    def test_an_empty_queue_is_known_by_its_dead_letters_or_its_rules(self, queue: DelayedQueue):
        with pytest.raises(InvalidConfiguration, match="There are none"):
            check(KIND)
        queue.groups.set(Groups(concurrency=1))
        check(KIND)
        queue.groups.clear()
        queue.offer_or_update("a", 1)
        envelope = queue.try_poll()
        assert envelope is not None
        envelope.reject("broken")
        assert DeadLetter.objects.count() == 1
        check(KIND)


class TestLeft:
    def test_limits_and_a_pause_are_named(self, queue: DelayedQueue):
        queue.groups.set(Groups(concurrency=1))
        start()  # nothing is due
        queue.offer_or_update("a", 1)
        with pytest.raises(InvalidConfiguration, match="not taken: 1; the queue has limits"):
            start()
        queue.groups.clear()
        queue.pause()
        with pytest.raises(InvalidConfiguration, match=r"is paused; manage\.py queueresume orders"):
            start()
        queue.resume()
        start()

    def test_what_became_due_later_is_not_left(self, queue: DelayedQueue):
        queue.offer_or_update("a", 1)
        with closing(connect(Options())) as session:
            assert "other transactions hold them" in (left_behind(session, KIND) or "")
            assert left_behind(session, KIND, since=1) is None


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_snapshot_of_a_mistyped_name_fails(
    queue: DelayedQueue, spark: object, lake: str, capsys: pytest.CaptureFixture[str]
):
    queue.offer_or_update("a", 1)
    assert main(["snapshot", "--queue", "order", "--to", lake]) == 1
    assert "Did you mean 'orders|json'?" in capsys.readouterr().err
