"""The pipeline's commands in separate processes: killed, stopped, submitted, broken."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.utils.timezone import now

from delayed_queue import DelayedQueue, RetryPolicy, ScheduledMessage
from delayed_queue.models import DeadLetter, Message
from delayed_queue.spark.models import ArchiveManifest
from delayed_queue.spark.pipeline import handling, imports
from delayed_queue.spark.pipeline.bundles import bundle
from delayed_queue.spark.pipeline.cli import (
    DONE,
    FAILED,
)
from tests.spark.archiver import STEPS
from tests.spark.clusters import (
    TIMEOUT,
    answer_of,
    environment,
    spawned,
)
from tests.spark.pipelines import CONSOLE, archive, holding, letters, lines, options
from tests.spark.support import is_waiting_for, with_jvm
from tests.support.processes import ROOT, kill_family, wait_until
from tests.support.sampling import sample

pytestmark = [*with_jvm, pytest.mark.slow]

# Outcomes of every fiftieth message.
WORDS = {0: "fail", 1: "reject", 2: "snooze"}
SMALL = [
    "--conf", "spark.driver.memory=1g", "--conf", "spark.ui.enabled=false",
    # On a busy machine a worker needs its time to start.
    "--conf", "spark.python.authenticate.socketTimeout=60s",
]  # fmt: skip
# Java writes the second of these before Spark has configured its log.
PROGRESS = re.compile(r"\[ +[\d.]+ s\] |WARNING: Using incubator modules: ")


@contextmanager
def command(*arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of the pipeline, and kill its remaining processes at the end."""
    line = [sys.executable, "-m", "delayed_queue.spark", *arguments, *SMALL]
    with spawned(line, ROOT, environment(**more)) as process:
        yield process


class TestArchive:
    """P8: a crash at any step repeats from the manifest."""

    @pytest.mark.parametrize("step", sample(STEPS, "read back"))
    def test_killed_at(
        self, step: str, queue: DelayedQueue, spark: Any, lake: str, other: Any
    ) -> None:
        letters(50)
        original = set(DeadLetter.objects.values_list("id", "key"))
        with self.archiving(step, spark, lake) as process:
            _, said = process.communicate(timeout=TIMEOUT)
        assert process.returncode == -signal.SIGKILL, said
        self.check_the_rest(spark, lake, original)

    def test_killed_while_its_tasks_delete(
        self, queue: DelayedQueue, spark: Any, lake: str, known: str
    ) -> None:
        """They continue for the dead driver, beside those of the next."""
        letters(50)
        original = set(DeadLetter.objects.values_list("id", "key"))
        with holding(known, "k25") as holder:
            with self.archiving("none", spark, lake) as process:
                wait_until(lambda: is_waiting_for(holder), TIMEOUT)
                process.kill()
                process.wait()
            self.check_nothing_is_lost(spark, lake, original, self.left())
            with ThreadPoolExecutor(1) as pool:
                later = pool.submit(self.check_the_rest, spark, lake, original)
                holder.rollback()
                later.result()

    @contextmanager
    def archiving(self, step: str, spark: Any, lake: str) -> Iterator[subprocess.Popen[str]]:
        # PySpark has no other access to the port of its JVM.
        gateway = spark.sparkContext._gateway.gateway_parameters  # noqa: SLF001
        with subprocess.Popen(
            [sys.executable, "-m", "tests.spark.archiver", step, lake, "2000000000000"],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(
                PYSPARK_GATEWAY_PORT=str(gateway.port), PYSPARK_GATEWAY_SECRET=gateway.auth_token
            ),
        ) as process:  # fmt: skip
            yield process

    def left(self) -> set[Any]:
        return set(DeadLetter.objects.values_list("id", "key"))

    def check_the_rest(self, spark: Any, lake: str, original: set[Any]) -> None:
        """The next command finishes the work of another, and counts all of it."""
        left = self.left()
        assert left <= original
        assert ArchiveManifest.objects.exclude(state="pruned").count() == 1
        self.check_nothing_is_lost(spark, lake, original, left)

        found = archive(spark, lake, rows_per_file=20, batch_size=10)

        assert DeadLetter.objects.count() == 0
        manifest = ArchiveManifest.objects.get()
        assert (manifest.state, manifest.rows, manifest.deleted, manifest.changed) == (
            "pruned", 50, 50, 0,
        )  # fmt: skip
        assert found.archives == 1
        rows = spark.read.parquet(f"{lake}/delayed_queue_dead_letter").collect()
        assert sorted((row["id"], row["pKey"]) for row in rows) == sorted(original)

    def check_nothing_is_lost(
        self, spark: Any, lake: str, original: set[Any], left: set[Any]
    ) -> None:
        """Rows that have left the table are in the files."""
        if left != original:
            rows = spark.read.parquet(f"{lake}/delayed_queue_dead_letter").collect()
            assert original - left <= {(row["id"], row["pKey"]) for row in rows}


class TestImport:
    """P6: the chunks equal the whole after any crash."""

    # In the run's own session: test_repeated_after_a_crash_it_offers_only_what_is_missing.
    @pytest.mark.long
    def test_the_driver_is_killed_between_two_chunks(
        self, queue: DelayedQueue, spark: Any, known: str, other: Any, tmp_path: Path
    ) -> None:
        """The same command offers the rest: no handled message twice."""
        records = [{"key": f"k{n}", "payload": {"n": n}} for n in range(60_000)]
        path = lines(tmp_path / "in.jsonl", records)
        with psycopg.connect(known) as holder:
            # The last chunk, in the order of the file, waits for this.
            holder.execute(
                """INSERT INTO delayed_queue
                ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
                VALUES ('k59999', 'orders|json', '', 0, 0, 0)"""
            )
            with command(
                "import", path, "--queue", "orders", "--id", "killed", "--master", "local[2,4]"
            ) as process:
                wait_until(lambda: is_waiting_for(holder) or process.poll() is not None, TIMEOUT)
                kill_family(process)
            holder.rollback()
        offered = count(other)
        assert 0 < offered < 60_000
        other.execute("""DELETE FROM delayed_queue WHERE "pKey" < 'k2'""")
        handled = offered - count(other)

        again = imports.run(spark, options(tmp_path, path, job="killed"), CONSOLE)

        assert (again.created, again.ignored, again.was_done) == (60_000, 0, False)
        assert 0 < handled == 60_000 - count(other)


class TestDrain:
    """P7: Ctrl-C and SIGTERM end it, and the last batch is acknowledged."""

    # In the run's own session: test_a_signal_ends_a_drain, of test_pipeline_session.py.
    @pytest.mark.long
    def test_a_signal_ends_a_continuous_one(
        self, queue: DelayedQueue, known: str, tmp_path: Path
    ) -> None:
        for n in range(20):
            queue.offer_or_update(f"k{n}", n)
        with command(
            "drain", "--queue", "orders", "--to", str(tmp_path / "lake"), "--continuous",
            "--format", "json", "--master", "local[1,4]",
        ) as process:  # fmt: skip
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if "20 messages" in line:
                    break
            assert "batch 0" in said[-1], said
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=TIMEOUT)
        assert process.returncode == DONE, err
        assert json.loads(out)["messages"] == 20
        # The operator sees no lines of Spark or Java.
        lines_of_all = [*said, *err.splitlines()]
        assert [line for line in lines_of_all if not PROGRESS.match(line)] == []
        assert Message.objects.count() == 0

    @pytest.mark.long
    def test_an_executor_is_killed_while_it_handles(
        self, queue: DelayedQueue, known: str, tmp_path: Path
    ) -> None:
        """The rules of a worker hold: settled messages stay so, and the rest is handled again."""
        words = {f"k{n:04}": WORDS.get(n % 50, "done") for n in range(2400)}
        words |= {"k0660": "kill", "k0661": "often"}
        queue.offer_batch(
            [ScheduledMessage(key, [word, str(tmp_path)]) for key, word in words.items()]
        )
        most = RetryPolicy.exponential().max_attempts
        Message.objects.filter(key="k0661").update(attempts=most)
        with command(
            "drain", "--queue", "orders", "--handler", "tests.spark.pipeline_targets:perishing",
            "--checkpoint", str(tmp_path / "checkpoint"), "--format", "json",
            "--master", "local-cluster[2,1,1024]",
        ) as process:  # fmt: skip
            answer_of(process)
        calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
        times = Counter(key for key, _ in calls)
        assert (tmp_path / "killed").exists()
        # No message is lost, and a message without attempts left is not handled.
        assert times.keys() == words.keys() - {"k0661"}
        # A message not yet settled by the task counts one more delivery.
        second = [place for place, (_, attempt) in enumerate(calls) if attempt == "2"]
        assert min(second) > calls.index(["k0660", "1"])
        # Only messages that the executor had handled and not yet acknowledged are handled again.
        again = {key for key, number in times.items() if number > 1}
        assert "k0660" in again
        assert again <= {calls[place][0] for place in second}
        assert {attempt for _, attempt in calls} == {"1", "2"}
        assert {words[key] for key in again} <= {"kill", "done"}
        assert max(times.values()) == 2
        assert len(again) <= handling.BATCH
        self.check_the_rules(words)

    def check_the_rules(self, words: dict[str, str]) -> None:
        def keys(*wanted: str) -> set[str]:
            return {key for key, word in words.items() if word in wanted}

        left = {each.key: each for each in Message.objects.all()}
        assert left.keys() == keys("fail", "snooze")
        assert {left[key].attempts for key in keys("fail")} <= {1, 2}
        assert {left[key].attempts for key in keys("snooze")} <= {0, 1}
        assert all(left[key].scheduled_at > now() for key in keys("snooze"))
        assert all(each.lease_id is None for each in left.values())
        letters = dict(DeadLetter.objects.values_list("key", "reason"))
        assert letters.keys() == keys("reject", "often")
        assert "attempts exhausted" in letters.pop("k0661")
        assert set(letters.values()) == {"no such order"}


class TestErrors:
    def test_the_command_of_manage_py_gives_the_connection_through_the_environment(
        self, transactional_db: None, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        monkeypatch.delenv("DELAYED_QUEUE_DSN", raising=False)
        call_command("queuepipeline", "bundle")
        assert capsys.readouterr().out.strip() == str(bundle())
        for asked in (("--format", "json", "bundle"), ("bundle", "--format", "json")):
            call_command("queuepipeline", *asked)
            assert json.loads(capsys.readouterr().out) == {"path": str(bundle())}
        with psycopg.connect(os.environ["DELAYED_QUEUE_DSN"]) as connection:
            assert connection.execute("SELECT count(*) FROM delayed_queue").fetchone() == (0,)
        with pytest.raises(SystemExit) as ended:
            call_command("queuepipeline", "drain", "--queue", "orders")
        assert ended.value.code == FAILED


def count(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT count(*) FROM delayed_queue").fetchone()
    assert row is not None
    return int(row[0])
