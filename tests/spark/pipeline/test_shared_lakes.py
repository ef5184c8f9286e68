"""Several queues in one lake, and directories of another queue (P7)."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from psycopg.conninfo import make_conninfo

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import Message
from delayed_queue.spark import claim_lake, drain, read_lake
from delayed_queue.spark.pipeline import drains
from delayed_queue.spark.pipeline.handling import Handling
from delayed_queue.spark.settings import VARIABLE
from tests.spark.pipelines import CONSOLE, TARGETS
from tests.spark.support import with_jvm

pytestmark = [*with_jvm, pytest.mark.usefixtures("queue")]

QUEUES: Final = ("alpha", "beta")
# Spark detects the error when it writes, so after the lease.
BROKEN: Final = {"compression": "nope"}


def run(spark: Any, name: str, **changes: Any) -> drains.Drained:
    asked = drains.DrainOptions(f"{name}|json", **changes)
    return drains.run(spark, asked, CONSOLE, threading.Event())


def fill(count: int, *names: str) -> None:
    for name in names or QUEUES:
        DelayedQueue(name).offer_batch(
            [ScheduledMessage(f"{name}-{each}", 1) for each in range(count)]
        )


def kinds_of(spark: Any, lake: str) -> Counter[tuple[str, str]]:
    return Counter((row.kind, row.key) for row in read_lake(spark, lake).collect())


def each_once(count: int) -> Counter[tuple[str, str]]:
    return Counter((f"{name}|json", f"{name}-{n}") for name in QUEUES for n in range(count))


def leased() -> int:
    return Message.objects.filter(lease_id__isnull=False).count()


class TestOneLake:
    @pytest.mark.long
    def test_after_a_drain_that_failed_and_side_by_side(self, spark: Any, lake: str):
        fill(3)
        with pytest.raises(Exception, match="nope"):
            run(spark, "alpha", to=lake, sink_options=BROKEN)
        assert leased() == 3
        with pytest.raises(InvalidConfiguration, match="nothing was drained to there yet"):
            read_lake(spark, lake)
        # One after the other: the first leases its own messages.
        assert run(spark, "beta", to=lake).messages == 3
        assert set(kinds_of(spark, lake)) == {("beta|json", f"beta-{n}") for n in range(3)}
        DelayedQueue("beta").offer_or_update("beta-3", 1)
        DelayedQueue("alpha").offer_or_update("alpha-3", 1)
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(run, spark, each, to=lake) for each in QUEUES]
            assert [each.result(120).messages for each in both] == [4, 1]
        assert kinds_of(spark, lake) == each_once(4)
        assert Message.objects.count() == 0
        # The queues' directories, for other readers.
        assert {each.name for each in Path(lake).iterdir()} == {
            "kind=alpha|json", "kind=beta|json", "_checkpoint",
        }  # fmt: skip
        assert spark.read.parquet(lake).where("kind = 'beta|json'").count() == 4
        self.check_files_of_a_process_that_died_are_not_read(spark, lake)

    def check_files_of_a_process_that_died_are_not_read(self, spark: Any, lake: str) -> None:
        """As a batch leaves them that is written a second time."""
        of_queue = f"{lake}/kind=alpha|json"
        written = next(Path(of_queue).rglob("*.parquet"))
        shutil.copy(written, written.with_name("part-9.parquet"))
        assert kinds_of(spark, lake) == each_once(4)
        assert set(kinds_of(spark, of_queue)) == {("alpha|json", f"alpha-{n}") for n in range(4)}
        assert spark.read.parquet(lake).count() > 8

    def test_of_texts_and_bytes_is_read_as_bytes(self, spark: Any, lake: str):
        fill(1, "alpha")
        DelayedQueue("raw", codec="bytes").offer_or_update("r", b"\xff\x00")
        run(spark, "alpha", to=lake)
        drains.run(spark, drains.DrainOptions("raw|bytes", to=lake), CONSOLE, threading.Event())
        found = {row.key: bytes(row.payload) for row in read_lake(spark, lake).collect()}
        assert found == {"alpha-0": b"1", "r": b"\xff\x00"}

    def test_that_another_stream_has_written_as_a_whole_is_refused(self, spark: Any, lake: str):
        """Its readers would see only that stream's files."""
        fill(1)
        rows = spark.readStream.format("delayed_queue").option("queue", "alpha").load()
        drain(rows.writeStream.format("parquet").option("path", lake), f"{lake}/_checkpoint")
        with pytest.raises(InvalidConfiguration, match="was written by another stream"):
            run(spark, "beta", to=lake)
        assert leased() == 0


BOTH: Final = r"'alpha\|json' of the database .*'beta\|json' of the database"


class TestAnotherQueuesCheckpoint:
    """The error names both, and no message is leased."""

    def test_of_the_command(self, spark: Any, lake: str, tmp_path: Path):
        fill(2)
        checkpoint = str(tmp_path / "checkpoint")
        assert run(spark, "alpha", checkpoint=checkpoint, to=lake).messages == 2
        places = ({"to": lake}, {"handling": Handling(f"{TARGETS}:answering", "beta")})
        for where in places:
            with pytest.raises(InvalidConfiguration, match=BOTH):
                run(spark, "beta", checkpoint=checkpoint, **where)
        assert not list(Path(lake).glob("kind=beta*"))
        assert (leased(), Message.objects.count()) == (0, 2)

    @pytest.mark.long
    def test_of_a_stream_of_ones_own(self, spark: Any, lake: str, tmp_path: Path):
        fill(2)

        def start(name: str, **options: str) -> None:
            rows = spark.readStream.format("delayed_queue").option("queue", name).load()
            writer = rows.writeStream.format("parquet").options(**options)
            drain(writer.option("path", lake), str(tmp_path / "checkpoint"))

        with pytest.raises(Exception, match="nope"):
            start("alpha", **BROKEN)
        with pytest.raises(Exception, match=r"'alpha\|json'.*'beta\|json'.*Nothing was leased"):
            start("beta")
        assert leased() == Message.objects.filter(kind="alpha|json", lease_id__isnull=False).count()
        start("alpha")
        assert {row.key for row in spark.read.parquet(lake).collect()} == {"alpha-0", "alpha-1"}
        # The same after the drain has ended, and for its directory.
        with pytest.raises(Exception, match=r"'alpha\|json'.*'beta\|json'"):
            start("beta")
        with pytest.raises(InvalidConfiguration, match="written under another checkpoint"):
            claim_lake(spark, lake, str(tmp_path / "of-beta"))
        assert leased() == 0

    @pytest.mark.long
    def test_of_another_database(
        self, spark: Any, lake: str, dsn: str, monkeypatch: pytest.MonkeyPatch
    ):
        fill(1, "alpha")
        run(spark, "alpha", to=lake)
        fill(1, "alpha")
        monkeypatch.setenv(VARIABLE, make_conninfo(dsn, dbname="postgres"))
        with pytest.raises(InvalidConfiguration, match=r"database 'test_.*database 'postgres'"):
            run(spark, "alpha", to=lake)
        # Even with another checkpoint: the directory belongs to the other one.
        monkeypatch.undo()
        with pytest.raises(InvalidConfiguration, match="written under another checkpoint"):
            run(spark, "alpha", to=lake, checkpoint=f"{lake}/_checkpoint/mine")
        assert run(spark, "alpha", to=lake).messages == 1
