"""A whole job or nothing: staged by tasks, merged once by the driver; without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from delayed_queue.models import Message
from delayed_queue.spark.database import Link
from delayed_queue.spark.models import OfferStage
from delayed_queue.spark.source.offering import Job
from delayed_queue.spark.source.writer import Written, clear_stage, merge_staged, stage_all
from tests.spark.offered import letters, triple
from tests.spark.support import job, keys_of, of_many, owned, rows, rows_of_many

pytestmark = pytest.mark.usefixtures("queue")


class TestAtomic:
    def stage(self, one: Job, keys: str, partition: int = 0) -> Written:
        return stage_all(one, partition, iter([rows(letters(keys))]))

    def merge(self, one: Job, staged: list[Written]) -> None:
        link = Link(one.options)
        link.once("merge", lambda session: merge_staged(session, one, staged))
        link.close()

    @pytest.mark.parametrize("mode", ["offer", "upsert"])
    def test_nothing_is_offered_until_all_is(self, other: psycopg.Connection[Any], mode: str):
        one = job(mode=mode, chunk="2", atomic="true")
        staged = [self.stage(one, "abc"), self.stage(one, "xa", 1)]
        self.stage(one, "zz", 1)  # of a twin that Spark did not select
        assert keys_of(other) == []
        for _ in range(2):  # commit() is called again after a lost answer
            self.merge(one, staged)
        assert (triple(), keys_of(other)) == ((4, 0, 1), letters("abcx"))
        assert OfferStage.objects.count() == 0

    def test_rows_say_their_queue_and_group(self):
        one = of_many(atomic="true")
        staged = stage_all(one, 0, iter([rows_of_many("a", "b"), rows_of_many("a")]))
        assert staged.soon == {"a|json", "b|json"}
        self.merge(one, [staged])
        assert (triple(), owned()) == (
            (2, 0, 1),
            {("k", "a|json", "of a"), ("k", "b|json", "of b")},
        )

    def test_rows_may_expire(self):
        at = datetime(2100, 1, 1, tzinfo=UTC)
        expiry = pa.array([at, None], pa.timestamp("us", "UTC"))
        one = job(atomic="true")
        batch = rows(["a", "b"]).append_column("expires_at", expiry)
        self.merge(one, [stage_all(one, 0, iter([batch]))])
        assert dict(Message.objects.values_list("key", "expires_at")) == {"a": at, "b": None}

    def test_rows_that_a_crash_took_are_missed(self, other: psycopg.Connection[Any]):
        one = job(atomic="true")
        staged = self.stage(one, "abc")
        OfferStage.objects.filter(key="b").delete()
        with pytest.raises(Exception, match="2 of 3 staged rows are left"):
            self.merge(one, [staged])
        assert (triple(), keys_of(other)) == ((0, 0, 0), [])

    def test_what_failed_is_cleared(self):
        one = job(atomic="true")
        self.stage(one, "abc")
        self.stage(job("old", atomic="true"), "abc")  # of 2023
        link = Link(one.options)
        link.once("clear", lambda session: clear_stage(session, one))
        link.close()
        assert OfferStage.objects.count() == 0

    def test_it_is_not_written_to_the_log(self, other: psycopg.Connection[Any]):
        found = other.execute(
            "SELECT relpersistence FROM pg_class WHERE relname = 'delayed_queue_offer_stage'"
        ).fetchone()
        assert found == ("u",)
