"""Which files of a lake belong to no batch: without a JVM, on files as Spark names them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from delayed_queue.spark.pipeline.files import SharedFiles
from delayed_queue.spark.pipeline.lake import Orphans, orphans_of

PART = "part-0000{}-0d6c5b0e-9b{}-c000.snappy.parquet"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "kind=orders|json"
    (found / "_spark_metadata").mkdir(parents=True)
    return found


def write(directory: Path, number: int, batch: int, at: int) -> Path:
    path = directory / "date=2026-03-01" / PART.format(number, batch)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"1234567890")
    os.utime(path, (at, at))
    return path


def commit(directory: Path, name: str, at: int, *paths: Path, root: str = "file:///lake") -> None:
    """Note the files as Spark does, with another root: lakes are moved."""
    lines = [json.dumps({"path": f"{root}/{each.name}", "action": "add"}) for each in paths]
    log = directory / "_spark_metadata" / name
    log.write_text("\n".join(["v1", *lines]))
    os.utime(log, (at, at))


def found(directory: Path) -> Orphans:
    return orphans_of(SharedFiles(), str(directory.parent))


def test_what_is_in_no_batch_and_older_than_the_last_commit(directory: Path):
    first, lost = write(directory, 0, 1, at=10), write(directory, 1, 1, at=11)
    commit(directory, "0", 20, first)
    second = write(directory, 0, 2, at=21)
    commit(directory, "1", 30, second)
    assert found(directory) == Orphans((str(lost),), 10)


def test_what_a_running_batch_writes_is_undecided(directory: Path):
    """It is later than the last commit; and what gets its name in the log is no commit yet."""
    commit(directory, "0", 20, write(directory, 0, 1, at=10))
    running = write(directory, 0, 2, at=21)
    commit(directory, ".1.8d3b6c1e.tmp", 30, running)
    assert found(directory) == Orphans(undecided=(str(running),))
    commit(directory, "1", 30, running)
    assert found(directory) == Orphans()


def test_of_the_same_moment_as_the_commit_is_undecided(directory: Path):
    commit(directory, "0", 20, write(directory, 0, 1, at=10))
    close = write(directory, 1, 1, at=20)
    assert found(directory) == Orphans(undecided=(str(close),))


def test_without_a_commit_nothing_is_decided(directory: Path):
    path = write(directory, 0, 1, at=10)
    assert found(directory) == Orphans(undecided=(str(path),))


def test_logs_that_were_made_one(directory: Path):
    """The compact one has all before it; those it was made of may still be there, or be broken."""
    kept = [write(directory, number, 1, at=10) for number in range(3)]
    commit(directory, "8", 20)
    commit(directory, "9.compact", 30, *kept[:2])
    commit(directory, "10", 40, kept[2])
    (directory / "_spark_metadata" / "8").write_text("v1\n{")
    lost = write(directory, 7, 1, at=15)
    assert found(directory).paths == (str(lost),)


def test_a_log_that_cannot_be_read_removes_nothing(directory: Path):
    write(directory, 0, 1, at=10)
    (directory / "_spark_metadata" / "0").write_text('v1\n{"path": ')
    with pytest.raises(ValueError, match="Expecting value"):
        found(directory)


def test_what_was_written_without_a_log_is_none_of_ours(tmp_path: Path):
    write(tmp_path, 0, 1, at=10)
    (tmp_path / "kind=mail|json").mkdir()
    write(tmp_path / "kind=mail|json", 0, 1, at=10)
    assert orphans_of(SharedFiles(), str(tmp_path)) == Orphans()


def test_hidden_files_are_no_data(directory: Path):
    commit(directory, "0", 20, write(directory, 0, 1, at=10))
    for name in ("_delayed_queue_of-1", ".part-1.parquet.crc", "_temporary/0/part-1.parquet"):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (5, 5))
    assert found(directory) == Orphans()
