"""Kinds in their original form: directories are named by texts, also numbers (P7-P11)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import Message
from delayed_queue.spark.pipeline import drains, imports, replays, reports, snapshots
from delayed_queue.spark.pipeline.lake import read_lake
from tests.spark.pipelines import CONSOLE, options
from tests.spark.support import with_jvm
from tests.support.sampling import sample

pytestmark = with_jvm

# Other queues share the tables, so a kind need not have a bar and a codec. Each kind is alone in
# its lake; among texts Spark would read it as a text anyway.
NUMBER, DATE, REAL = "0042", "2024-01-01", "1e3"
# Spark escapes characters that a directory's name cannot have.
ESCAPED = [
    "a/b|json", "100%|json", "%2F|json", "10:30|json", "k=v|json", "#?*[]{}^|json",
    "back\\slash'\"|json", " spaced |json", "ключ é|json", "a+b&c;d,e|json", "..|json",
]  # fmt: skip
ALL_AT_ONCE = "a/b%2F 10:30 k=v#?*[]{}^\\'\"+&;,é|json"


def offered(*kinds: str) -> set[tuple[str, str]]:
    """Offer one message to each kind; return kinds and keys."""
    for n, kind in enumerate(kinds):
        DelayedQueue("orders").offer_or_update(f"k{n}", n)
        Message.objects.filter(key=f"k{n}", kind="orders|json").update(kind=kind)
    return stored()


def stored() -> set[tuple[str, str]]:
    return set(Message.objects.values_list("kind", "key"))


def drain(spark: Any, lake: str, kind: str) -> drains.Drained:
    asked = drains.DrainOptions(kind, to=lake)
    return drains.run(spark, asked, CONSOLE, threading.Event())


def replay(spark: Any, *paths: str, **changes: Any) -> int:
    asked = replays.ReplayOptions(paths, **changes)
    return replays.run(spark, asked, CONSOLE).created


def measured(spark: Any, **sources: Any) -> dict[str, Any]:
    return reports.run(spark, reports.ReportOptions(**sources), CONSOLE).figures


@pytest.mark.parametrize("kind", sample([NUMBER, ALL_AT_ONCE], ALL_AT_ONCE))
def test_a_drained_kind_comes_back_as_it_was(
    queue: DelayedQueue, spark: Any, lake: str, kind: str
) -> None:
    before = offered(kind)
    assert drain(spark, lake, kind).messages == 1
    figures = measured(spark, drained=(lake,))
    assert [each["kind"] for each in figures["kinds"]] == [kind]
    assert replay(spark, lake, kinds=(kind,)) == 1
    assert stored() == before


@pytest.mark.parametrize("kind", sample([DATE, REAL], DATE))
def test_a_kind_of_a_snapshot_comes_back_as_it_was(
    queue: DelayedQueue, spark: Any, lake: str, kind: str
) -> None:
    before = offered(kind)
    path = snapshots.run(spark, None, lake, CONSOLE).path
    Message.objects.all().delete()
    assert replay(spark, path) == 1
    assert stored() == before


@pytest.mark.long
def test_kinds_that_name_no_directory_come_back_as_they_were(
    queue: DelayedQueue, spark: Any, lake: str
) -> None:
    """Spark has one directory for both empty texts and nulls."""
    before = offered(*ESCAPED, "")
    path = snapshots.run(spark, None, lake, CONSOLE).path
    Message.objects.all().delete()
    with pytest.raises(Exception, match="A queue needs a name"):
        replay(spark, path)
    assert replay(spark, path, kinds=tuple(ESCAPED)) == len(ESCAPED)
    assert stored() == {(kind, key) for kind, key in before if kind}


def test_an_import_takes_names_of_directories_as_texts(
    queue: DelayedQueue, spark: Any, tmp_path: Path
) -> None:
    part = tmp_path / "input" / "queue=0042" / "day=2024-01-01"
    part.mkdir(parents=True)
    pq.write_table(pa.table({"key": ["a"]}), part / "1.parquet")
    imports.run(spark, options(tmp_path, str(tmp_path / "input"), form="parquet"), CONSOLE)
    assert stored() == {("0042|json", "a")}
    assert b'"2024-01-01"' in bytes(Message.objects.get().payload)


def test_the_session_keeps_its_own_setting(spark: Any, tmp_path: Path) -> None:
    part = tmp_path / "kind=0042"
    part.mkdir()
    pq.write_table(pa.table({"key": ["a"]}), part / "1.parquet")
    assert read_lake(spark, str(tmp_path)).collect()[0]["kind"] == "0042"
    assert spark.read.parquet(str(tmp_path)).collect()[0]["kind"] == 42
    with pytest.raises(Exception, match="PATH_NOT_FOUND"):
        read_lake(spark, str(tmp_path / "nothing"))
    assert spark.read.parquet(str(tmp_path)).collect()[0]["kind"] == 42
