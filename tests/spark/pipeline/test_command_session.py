"""The session of a command, and the findings of ``doctor`` on one in this process."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import Message
from delayed_queue.spark.pipeline import cli, doctor, drains, session
from delayed_queue.spark.pipeline.cli import DONE, FAILED
from delayed_queue.spark.settings import SparkSettings
from tests.spark.pipelines import CONSOLE
from tests.spark.support import with_jvm
from tests.support.processes import wait_until

pytestmark = with_jvm


def test_a_session_that_is_open_is_taken_and_stays_open(known: str, spark: Any) -> None:
    with session.session(SparkSettings(), CONSOLE, "again") as taken:
        assert taken.sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3


def test_a_command_that_fails_says_a_sentence_and_no_stack(
    known: str, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["import", "nothing.csv", "--queue", "orders"]) == FAILED
    out, err = capsys.readouterr()
    assert out == ""
    told = [line for line in err.splitlines() if not re.match(r"\[ +[\d.]+ s\] ", line)]
    assert len(told) == 1, err
    assert "Path does not exist" in told[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_drain(
    queue: DelayedQueue,
    spark: Any,
    lake: str,
    number: signal.Signals,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """P7: a continuous drain stops, and its last batch is acknowledged."""
    for n in range(20):
        queue.offer_or_update(f"k{n}", n)

    def send_when_the_batch_is_written() -> None:
        try:
            wait_until(lambda: list(Path(lake).glob("_checkpoint/*/commits/0")), 300)
        finally:
            os.kill(os.getpid(), number)

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send_when_the_batch_is_written)
        code = cli.main(
            ["drain", "--queue", "orders", "--to", lake, "--continuous", "--format", "json"]
        )
        sent.result()
    assert code == DONE
    assert json.loads(capsys.readouterr().out)["messages"] == 20
    assert Message.objects.count() == 0


class SetAtTheCommit(threading.Event):
    """Set when the first batch is committed; ``is_set`` waits for that."""

    def __init__(self, lake: str) -> None:
        super().__init__()
        self.lake = Path(lake)

    def is_set(self) -> bool:
        wait_until(lambda: list(self.lake.glob("_checkpoint/*/commits/0")), 300)
        return True


def test_a_batch_that_is_committed_while_the_end_is_asked_for_is_counted(
    queue: DelayedQueue, spark: Any, lake: str
) -> None:
    for n in range(20):
        queue.offer_or_update(f"k{n}", n)
    asked = drains.DrainOptions("orders|json", to=lake, is_continuous=True)
    found = drains.run(spark, asked, CONSOLE, SetAtTheCommit(lake))
    assert (found.messages, found.batches) == (20, 1)
    assert Message.objects.count() == 0


class TestDoctor:
    """P11."""

    def test_executors_see_what_the_driver_sees(self, queue: DelayedQueue, spark: Any) -> None:
        rows = doctor.look_from_executors(spark)
        assert len(rows) >= 2
        found = doctor.compare_executors(doctor.look(), rows)
        assert {each.subject: each.level for each in found} == {"executors": doctor.OK}
        database = doctor.check_database()
        assert (database.level, database.found.partition(" ")[0]) == (doctor.OK, "PostgreSQL")

    def test_tables_that_are_missing_are_named(
        self, queue: DelayedQueue, spark: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dsn = f"{os.environ['DELAYED_QUEUE_DSN']} options='-c search_path=pg_catalog'"
        monkeypatch.setenv("DELAYED_QUEUE_DSN", dsn)
        found = doctor.check_database()
        assert (found.level, found.advice) == (doctor.FAIL, "Run manage.py migrate.")
        assert "without delayed_queue," in found.found
