"""All commands in order: on Spark Connect, separate executors, and a cluster."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from delayed_queue.models import DeadLetter, Message
from tests.spark.clusters import TIMEOUT, cluster
from tests.spark.drivers import finish, program
from tests.spark.pipelines import letters
from tests.spark.support import with_jvm
from tests.support.processes import ROOT

pytestmark = [*with_jvm, pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("queue")]

HANDLER = "tests.spark.programs.fleet:answer"


def prepare(directory: Path) -> None:
    (directory / "in.csv.gz").write_bytes(gzip.compress(b'id,amount\na,1\nb,"""reject"""\n,3\n'))
    letters(50)


def counted(path: str, what: str = "count(*)") -> Any:
    """Query the files by another engine than their writer."""
    return duckdb.execute(f"SELECT {what} FROM read_parquet(?)", [path]).fetchone()  # noqa: S608


def check(output: str, directory: Path) -> None:
    told = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    codes = [(each["command"], each["code"]) for each in told if "code" in each]
    assert codes == [
        ("import", 3), ("snapshot", 0), ("drain", 0), ("replay", 0), ("drain", 0), ("archive", 0),
        ("report", 0), ("doctor", 0),
    ], output  # fmt: skip
    answers = [each for each in told if "code" not in each]
    assert (answers[0]["created"], answers[0]["quarantined"]) == (2, 1)
    assert [answers[number]["messages"] for number in (1, 2, 4)] == [2, 2, 2]
    assert (answers[4]["done"], answers[4]["dead"]) == (1, 1)
    [archived] = answers[5]["tables"]
    assert (archived["rows"], archived["deleted"], archived["archives"]) == (50, 50, 1)
    assert Message.objects.count() == 0
    assert DeadLetter.objects.values_list("key", flat=True).get() == "b"
    assert counted(f"{directory}/snapshots/**/*.parquet", "list_sort(list(key))") == (["a", "b"],)
    assert counted(f"{directory}/lake/**/*.parquet") == (2,)
    assert counted(f"{directory}/archive/**/*.parquet", "count(DISTINCT id)") == (50,)
    assert (directory / "report" / "report.json").exists()


@pytest.mark.parametrize("master", ["connect", "local-cluster[2,1,1024]"])
def test_every_command_ends_as_on_a_session_of_its_own(tmp_path: Path, master: str) -> None:
    prepare(tmp_path)
    with program("walking", str(tmp_path), HANDLER, master) as process:
        check(finish(process), tmp_path)


def test_every_command_ends_on_a_standalone_cluster(tmp_path: Path) -> None:
    """Master, two workers, the driver by spark-submit: each has only its submitted files."""
    prepare(tmp_path)
    walking = ROOT / "tests" / "spark" / "programs" / "walking.py"
    with cluster(tmp_path) as found, found.submitted(
        str(tmp_path), "fleet:answer", program=walking
    ) as process:  # fmt: skip
        output, said = process.communicate(timeout=2 * TIMEOUT)
        assert process.returncode == 0, said
    check(output, tmp_path)
