"""Each command while an executor, a machine or its driver is killed (P6 to P8).

It runs on a standalone cluster. The command stops in the middle of its tasks (``pyspark_gating``),
so that the killed process is at work.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.db import connection

from delayed_queue.models import DeadLetter, Message
from delayed_queue.spark.models import ArchiveManifest, PipelineReport
from tests.spark.clusters import TIMEOUT, Cluster, answer_of, cluster, kill
from tests.spark.drivers import in_lake
from tests.spark.pipelines import letters
from tests.spark.support import with_jvm
from tests.spark.test_walks import counted
from tests.support.processes import kill_family, wait_until

pytestmark = [*with_jvm, pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("queue")]

COUNT: Final = 4_000
LETTERS: Final = 50
KEYS: Final = [f"k{n}" for n in range(1, COUNT + 1)]
# The sink rejects every hundredth of these.
MESSAGES: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT
    'k' || n, 'orders|json',
    convert_to(CASE WHEN n % 100 = 0 THEN '"reject"' ELSE '1' END, 'UTF8'), n, n, n
FROM generate_series(1, 4000) AS n
"""
# A task is tried twice when three of four are done, on another machine: so workers have addresses.
TWINS: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.75",
    "spark.speculation.multiplier": "1",
    "spark.speculation.efficiency.enabled": "false",
}
HOSTS: Final = ("127.0.0.1", "127.0.0.2")
FOUR: Final = ("--partitions", "4")
NEVER: Final = 1_000


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), *HOSTS) as found:
        yield found


# Preparations


def offered(directory: Path) -> None:
    with connection.cursor() as cursor:
        cursor.execute(MESSAGES)


def files(directory: Path) -> None:
    (directory / "in").mkdir()
    for part in range(4):
        rows = [json.dumps({"key": key, "payload": 1}) for key in KEYS[part::4]]
        (directory / "in" / f"{part}.jsonl").write_text("\n".join(rows))


def drained(directory: Path) -> None:
    begin = datetime(2026, 5, 1, tzinfo=UTC)
    rows = [
        {
            "kind": "orders|json", "key": key, "payload": "1", "attempts": 1, "created_at": begin,
            "headers": None, "group": None,
            "scheduled_at_initially": begin, "drained_at": begin + timedelta(seconds=1),
        }
        for key in KEYS
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), directory / "drained.parquet")


def lived_and_died(directory: Path) -> None:
    drained(directory)
    offered(directory)
    letters(LETTERS)


# Checks of the result


def all_are_there(directory: Path, answer: dict[str, Any]) -> None:
    """Created once, counted over all runs together."""
    assert (answer["created"], answer["updated"], answer["ignored"]) == (COUNT, 0, 0)
    assert Message.objects.count() == COUNT


def in_files(directory: Path, answer: dict[str, Any]) -> None:
    assert answer["messages"] == COUNT
    assert in_lake(directory / "lake" / "kind=orders|json") == Counter(KEYS)
    assert Message.objects.count() == 0


def handled(directory: Path, answer: dict[str, Any]) -> None:
    """Each is counted once, even if a dead task, or another driver, settled it."""
    ends = {name: answer[name] for name in ("done", "retried", "snoozed", "dead", "messages")}
    dead = COUNT // 100
    assert ends == {
        "done": COUNT - dead, "retried": 0, "snoozed": 0, "dead": dead, "messages": COUNT,
    }  # fmt: skip
    assert Message.objects.count() == 0
    rejected = DeadLetter.objects.values_list("key", flat=True)
    assert sorted(rejected) == sorted(KEYS[99::100])


def archived(directory: Path, answer: dict[str, Any]) -> None:
    [found] = answer["tables"]
    assert (found["rows"], found["deleted"], found["changed"]) == (LETTERS, LETTERS, 0)
    assert not DeadLetter.objects.exists()
    assert ArchiveManifest.objects.get().state == "pruned"
    files_of = f"{directory}/archive/*/*/*.parquet"
    assert counted(files_of, "count(*), count(DISTINCT id)") == (LETTERS, LETTERS)


def as_it_stands(directory: Path, answer: dict[str, Any]) -> None:
    assert answer["messages"] == COUNT
    [_] = (directory / "snapshots").glob("snapshot=*")
    files_of = f"{directory}/snapshots/snapshot=*/**/*.parquet"
    assert counted(files_of, "count(*), count(DISTINCT key)") == (COUNT, COUNT)


def measured(directory: Path, answer: dict[str, Any]) -> None:
    [kind] = answer["kinds"]
    assert (kind["done"], kind["dead"]) == (COUNT, LETTERS)
    assert [each["due"] for each in answer["backlog"]] == [COUNT]
    assert PipelineReport.objects.count() == 1


@dataclass(frozen=True)
class Case:
    """A command, its input, and the numbers of its disturbed tasks."""

    fill: Callable[[Path], None]
    check: Callable[[Path, dict[str, Any]], None]
    first: int
    last: int
    arguments: tuple[str, ...]


_ARCHIVE: Final = (
    "archive", "dead-letters", "--older-than", "1d", "--to", "{}/archive",
    "--rows-per-file", "10", "--batch-size", "5", *FOUR,
)  # fmt: skip
_DRAIN: Final = ("drain", "--queue", "orders", *FOUR)
# Twelve tasks of an import check lines, cut digests and compare these; four more offer. Each
# handling task calls Python three times.
CASES: Final = {
    "import": Case(files, all_are_there, 13, 16, ("import", "{}/in", "--queue", "orders", *FOUR)),
    "drain": Case(offered, in_files, 1, 4, (*_DRAIN, "--to", "{}/lake")),
    "handle": Case(offered, handled, 6, 12, (
        *_DRAIN, "--handler", "fleet:answer", "--checkpoint", "{}/checkpoint",
    )),
    "archive": Case(lambda _: letters(LETTERS), archived, 1, 4, _ARCHIVE),
    "delete": Case(lambda _: letters(LETTERS), archived, 5, 8, _ARCHIVE),
    "snapshot": Case(offered, as_it_stands, 3, 6, ("snapshot", "--to", "{}/snapshots", *FOUR)),
    "replay": Case(drained, all_are_there, 1, 4, ("replay", "{}/drained.parquet", *FOUR)),
    "report": Case(lived_and_died, measured, 1, 4, (
        "report", "--drained", "{}/drained.parquet", *FOUR,
    )),
}  # fmt: skip


class Gate:
    """The gate at which the tasks of a command wait."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "gate"
        self.directory.mkdir()

    def conf(self, first: int, last: int) -> dict[str, str]:
        variables = {"GATE": self.directory, "GATE_FIRST": first, "GATE_LAST": last}
        return {
            "spark.python.worker.module": "pyspark_gating",
            **{f"spark.executorEnv.{name}": str(each) for name, each in variables.items()},
        }

    def has(self, number: int) -> bool:
        return (self.directory / f"task-{number}").exists()

    def open(self) -> None:
        (self.directory / "open").touch()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def arguments_of(case: Case, directory: Path) -> list[str]:
    return [*(each.replace("{}", str(directory)) for each in case.arguments), "--format", "json"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("victim", ["executor", "machine", "driver"])
def test_killed(name: str, victim: str, machines: Cluster, gate: Gate, tmp_path: Path) -> None:
    """With two tasks running; without its driver the command runs again."""
    case = CASES[name]
    case.fill(tmp_path)
    arguments = arguments_of(case, tmp_path)
    with machines.submitted(*arguments, conf=gate.conf(case.first + 1, NEVER)) as process:
        wait_until(lambda: gate.has(case.first + 2) or process.poll() is not None, TIMEOUT)
        assert process.poll() is None, process.communicate()
        if victim == "driver":
            kill_family(process)
        elif victim == "machine":
            kill_family(machines.workers[0])
        else:
            for each in machines.executors():
                kill(each.pid)
        gate.open()
        answer = {} if victim == "driver" else answer_of(process)
    if victim == "driver":
        answer = machines.answer(*arguments)
    machines.fill_up()
    case.check(tmp_path, answer)


@pytest.mark.parametrize("name", CASES)
def test_tried_twice(name: str, machines: Cluster, gate: Gate, tmp_path: Path) -> None:
    """A task waits until its twin starts: then both are at work."""
    case = CASES[name]
    case.fill(tmp_path)
    conf = {**TWINS, **gate.conf(case.first + 1, case.first + 1)}
    with machines.submitted(*arguments_of(case, tmp_path), conf=conf) as process:
        # If the twin was fast, it has ended: a waiting task cannot have done its part.
        wait_until(lambda: gate.has(case.last + 1) or process.poll() is not None, TIMEOUT)
        assert gate.has(case.first + 1)
        gate.open()
        answer = answer_of(process)
    case.check(tmp_path, answer)
