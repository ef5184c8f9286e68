"""``drain`` on a session of Spark in this process."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import transaction
from django.utils import timezone

from delayed_queue import DelayedQueue, Groups, RetryPolicy, ScheduledMessage
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import DeadLetter, Message
from delayed_queue.spark import claim_lake
from delayed_queue.spark.pipeline import drains, replays
from delayed_queue.spark.pipeline.cli import main
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.pipeline.files import Files
from delayed_queue.spark.pipeline.handling import Handling
from tests.spark.pipelines import CONSOLE, TARGETS
from tests.spark.support import with_jvm
from tests.support.sampling import sample

pytestmark = with_jvm


def drain(spark: Any, tmp_path: Path, **changes: Any) -> drains.Drained:
    asked = drains.DrainOptions("orders|json", str(tmp_path / "checkpoint"), **changes)
    return drains.run(spark, asked, CONSOLE, threading.Event())


class TestDrain:
    """P7."""

    def test_to_parquet_by_kind_and_date(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        lake = str(tmp_path / "lake")
        for n in range(30):
            queue.offer_or_update(f"k{n}", {"n": n})
        queue.offer_or_update("later", 1, datetime(2031, 1, 1, tzinfo=UTC))
        found = drain(spark, tmp_path, to=lake, max_messages=20)
        assert (found.messages, found.batches) == (30, 2)
        assert queue.stats().due == queue.stats().leased == 0
        assert queue.contains_message("later")
        rows = spark.read.parquet(lake)
        assert {row["key"] for row in rows.collect()} == {f"k{n}" for n in range(30)}
        assert {"kind", "date", "drained_at", "attempts"} <= set(rows.columns)
        # No message is due any more: no file is written, and no lease is left.
        assert drain(spark, tmp_path, to=lake).messages == 0
        assert spark.read.parquet(lake).count() == 30

    @pytest.mark.long
    def test_files_that_another_checkpoint_has_numbered_are_refused_before_anything_is_leased(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        """Spark would skip the batch as already written, and it would be acknowledged."""
        lake = str(tmp_path / "lake")
        queue.offer_or_update("a", 1)
        assert drain(spark, tmp_path, to=lake).messages == 1
        queue.offer_or_update("b", 2)
        shutil.move(tmp_path / "checkpoint", tmp_path / "moved")
        with pytest.raises(InvalidConfiguration, match="up to number 0"):
            drain(spark, tmp_path, to=lake)
        assert queue.stats().due == 1

        shutil.move(tmp_path / "moved", tmp_path / "checkpoint")
        assert drain(spark, tmp_path, to=lake).messages == 1
        assert sorted(row["key"] for row in spark.read.parquet(lake).collect()) == ["a", "b"]

    def test_what_is_due_and_cannot_be_taken_is_no_success(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A wrong name, and limits: each fails with its reason."""
        for n in range(3):
            queue.offer_or_update(f"k{n}", n)
        to = ["drain", "--to", str(tmp_path / "lake"), "--queue"]
        assert main([*to, "order"]) == 1
        assert "'order|json'. Did you mean 'orders|json'?" in capsys.readouterr().err
        assert not (tmp_path / "lake").exists()

        queue.groups.set(Groups(concurrency=1))
        assert main([*to, "orders"]) == 1
        assert "not taken: 3; the queue has limits" in capsys.readouterr().err

    @pytest.mark.long
    def test_a_limit_that_is_set_meanwhile_is_no_success(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        queue.offer_batch([ScheduledMessage(f"k{n}", n) for n in range(3)])
        stopping = threading.Event()

        class Limiting(Console):
            """Sets a limit after the first batch, when one more message is overdue."""

            def progress(self, text: str) -> None:
                if text.startswith("batch 0"):
                    queue.groups.set(Groups(concurrency=1))
                    queue.offer_or_update("late", 1, datetime(2026, 1, 1, tzinfo=UTC))
                    stopping.set()

        asked = drains.DrainOptions(
            "orders|json", str(tmp_path / "cp"), to=str(tmp_path / "lake"), is_continuous=True,
            interval="1 hour",
        )  # fmt: skip
        found = drains.run(spark, asked, Limiting(), stopping)
        assert found.messages == 3
        assert "not taken: 1; the queue has limits" in (found.refused or "")

    @pytest.mark.long
    def test_what_others_hold_is_no_success_and_an_empty_queue_is_one(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        queue.offer_or_update("a", 1)
        to = ["drain", "--to", str(tmp_path / "lake"), "--queue", "orders"]
        with transaction.atomic():
            list(Message.objects.select_for_update())
            assert main(to) == 1
        assert "other transactions hold them" in capsys.readouterr().err
        assert main(to) == 0
        # The database has no trace of the queue now, but its checkpoint has.
        assert main(to) == 0

    def test_a_log_that_was_compacted_counts_too(self, spark: Any, tmp_path: Path) -> None:
        log = tmp_path / "lake" / "_spark_metadata"
        log.mkdir(parents=True)
        for name in ("8", "9.compact"):
            (log / name).write_text("v1\n")
        with pytest.raises(InvalidConfiguration, match="up to number 9"):
            claim_lake(spark, str(tmp_path / "lake"), str(tmp_path / "checkpoint"))

    @pytest.mark.long
    def test_a_directory_is_one_checkpoints_from_its_start_on(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        """Even before the first write; and the checkpoint may move."""
        lake, checkpoint = str(tmp_path / "lake"), str(tmp_path / "checkpoint")
        of_queue = tmp_path / "lake" / "kind=orders|json"
        claim_lake(spark, str(of_queue), checkpoint)
        claim_lake(spark, f"{of_queue}/", f"{checkpoint}/")
        queue.offer_or_update("a", 1)
        with pytest.raises(InvalidConfiguration, match="belongs to another checkpoint"):
            drain(spark, tmp_path / "other", to=lake)
        assert queue.stats().due == 1
        shutil.move(checkpoint, tmp_path / "moved")
        claim_lake(spark, str(of_queue), str(tmp_path / "moved"))
        # The error's remedy: abandon the first checkpoint.
        [claim] = of_queue.glob("_delayed_queue-*")
        claim.unlink()
        assert drain(spark, tmp_path / "other", to=lake).messages == 1
        assert [row["key"] for row in spark.read.parquet(lake).collect()] == ["a"]

    def test_an_old_note_outlives_one_that_is_about_to_go(self, spark: Any, tmp_path: Path) -> None:
        """A rival checks before the mark is written, and again after."""
        lake, checkpoint = tmp_path / "lake", str(tmp_path / "checkpoint")
        claim_lake(spark, str(lake), checkpoint)
        rival = lake / "_delayed_queue-rival"
        rival.touch()
        with pytest.raises(InvalidConfiguration, match="_delayed_queue-rival"):
            claim_lake(spark, str(lake), checkpoint)
        rival.unlink()
        claim_lake(spark, str(lake), checkpoint)
        with pytest.raises(InvalidConfiguration, match="belongs to another checkpoint"):
            claim_lake(spark, str(lake), str(tmp_path / "rival"))

    def test_a_checkpoint_that_two_have_begun_with_keeps_its_directory(
        self, spark: Any, tmp_path: Path
    ) -> None:
        lake, checkpoint = str(tmp_path / "lake"), tmp_path / "checkpoint"
        claim_lake(spark, lake, str(checkpoint))
        for name in ("_delayed_queue-", "_delayed_queue-z"):  # before and after the other
            (checkpoint / name).touch()
            claim_lake(spark, lake, str(checkpoint))

    def test_of_two_that_start_at_once_one_at_most_is_let_in(
        self, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lake = str(tmp_path / "lake")
        both, touch = threading.Barrier(2), Files.touch

        def together(self: Files, path: str) -> None:
            """Both have checked, and found no mark."""
            if path.startswith(lake):
                both.wait(30)
            touch(self, path)
            if path.startswith(lake):
                both.wait(30)

        monkeypatch.setattr(Files, "touch", together)
        with ThreadPoolExecutor(2) as pool:
            tried = {
                name: pool.submit(claim_lake, spark, lake, str(tmp_path / name)) for name in "ab"
            }
            refused = {name: each.exception(60) for name, each in tried.items()}
        monkeypatch.undo()
        let_in = [name for name, error in refused.items() if error is None]
        assert len(let_in) <= 1
        assert all(isinstance(each, InvalidConfiguration | None) for each in refused.values())
        # A refused stream blocks no other.
        owner = let_in[0] if let_in else "b"
        claim_lake(spark, lake, str(tmp_path / owner))
        with pytest.raises(InvalidConfiguration, match="belongs to another checkpoint"):
            claim_lake(spark, lake, str(tmp_path / ("a" if owner == "b" else "b")))

    @pytest.mark.long
    def test_a_payload_that_is_no_text_is_kept_as_it_is(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, other: psycopg.Connection[Any]
    ) -> None:
        """It must not block later messages, and a replay restores it byte for byte."""
        lake = str(tmp_path / "lake")
        for key in ("a", "b", "c"):
            queue.offer_or_update(key, {"é": key})
        other.execute("""UPDATE delayed_queue SET payload = '\\xff00fe' WHERE "pKey" = 'b'""")
        before = {each.key: bytes(each.payload) for each in Message.objects.all()}
        assert drain(spark, tmp_path, to=lake).messages == 3
        assert dict(spark.read.parquet(lake).dtypes)["payload"] == "string"
        assert replays.run(spark, replays.ReplayOptions((lake,)), CONSOLE).created == 3
        assert {each.key: bytes(each.payload) for each in Message.objects.all()} == before

    @pytest.mark.parametrize("name", sample(["answering", "answering_later"], "answering"))
    def test_a_handler_is_judged_by_the_workers_rules(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, other: Any, name: str
    ) -> None:
        for key, payload in {
            "done": 1, "snoozed": "snooze", "failed": "fail", "rejected": "reject",
        }.items():  # fmt: skip
            queue.offer_or_update(key, payload)
        queue.offer_or_update("unreadable", 1)
        other.execute("""UPDATE delayed_queue SET payload = '{' WHERE "pKey" = 'unreadable'""")
        queue.offer_or_update("often", "fail")
        other.execute("""UPDATE delayed_queue SET attempts = 1 WHERE "pKey" = 'often'""")
        retry = RetryPolicy.ladder("1h")
        handling = Handling(f"{TARGETS}:{name}", "orders", retry=retry, concurrency=3)
        queue.offer_or_update("expired", 1)
        Message.objects.filter(key="expired").update(expires_at=timezone.now())

        found = drain(spark, tmp_path, handling=handling, partitions=2)

        assert found.report() == {
            "kind": "orders|json", "messages": 6, "batches": 1, "done": 1, "retried": 1,
            "snoozed": 1, "dead": 3, "lost": 0,
        }  # fmt: skip
        letters = dict(DeadLetter.objects.values_list("key", "reason"))
        assert letters.keys() == {"rejected", "unreadable", "often"}
        assert letters["rejected"] == "no such order"
        assert letters["often"] == "attempts exhausted: ValueError"
        assert "cannot decode" in letters["unreadable"]
        left = {each.key: each for each in Message.objects.all()}
        assert left.keys() == {"snoozed", "failed"}
        assert (left["snoozed"].attempts, left["failed"].attempts) == (0, 1)
        assert "ValueError: broken" in (left["failed"].last_error or "")
        assert all(each.lease_id is None for each in left.values())

    def test_a_message_that_kills_runs_out_of_attempts_and_takes_none_along(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        """Under one lease, which repeated tasks and repeated batches share."""
        for n in range(20):
            queue.offer_or_update(f"k{n:02}", "die" if n == 7 else n)
        handling = Handling(f"{TARGETS}:deadly", "orders", retry=RetryPolicy.ladder("1s"))
        assert drain(spark, tmp_path, handling=handling).report()["dead"] == 1
        assert Message.objects.count() == 0
        letter = DeadLetter.objects.get()
        # Two deliveries, and a third that was prevented.
        assert (letter.key, letter.attempts) == ("k07", 3)
        assert letter.reason == "attempts exhausted: no delivery ended with an answer"

    def test_a_handler_that_is_not_there_is_told_before_anything_is_leased(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        queue.offer_or_update("a", 1)
        with pytest.raises(InvalidConfiguration, match=f"'{TARGETS}:nobody' cannot be loaded"):
            drain(spark, tmp_path, handling=Handling(f"{TARGETS}:nobody", "orders"))
        assert queue.stats().due == 1

    @pytest.mark.long
    def test_room_for_all_its_connections_is_looked_for_before_anything_is_leased(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.offer_or_update("a", 1)
        monkeypatch.setattr(drains, "CONNECTIONS_OF_TASK", 1000)
        with pytest.raises(Exception, match=r"TooManyConnections.*2000 tasks, 4 leases"):
            drain(spark, tmp_path, handling=Handling(f"{TARGETS}:answering", "orders"))
        assert queue.stats().due == 1
