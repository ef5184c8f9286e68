"""What is pickled for the executors holds no password; what is imported raises nothing."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.spark.connecting import VARIABLE
from delayed_queue.spark.schema import read_schema
from delayed_queue.spark.source import DelayedQueueDataSource
from tests.processes import ROOT
from tests.unit.test_imports import REFUSE_DJANGO

SECRET = "hunter2-s3cret"


def test_nothing_that_travels_holds_the_password(
    queue: DelayedQueue, known: str, monkeypatch: pytest.MonkeyPatch
):
    """On the socket, where a password that is not asked for does no harm."""
    monkeypatch.setenv(VARIABLE, f"{known} password={SECRET}")
    queue.offer_or_update("a", 1)
    source = DelayedQueueDataSource({"queue": "orders"})
    schema = source.schema()
    reader, stream = source.reader(schema), source.streamReader(schema)
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    rows = read_schema(None)
    written = type(rows)([rows["key"], rows["payload"]])
    travelling = [
        source,
        reader,
        *reader.partitions(),
        stream,
        end,
        *stream.partitions(stream.initialOffset(), end),
        source.writer(written, overwrite=False),
        source.streamWriter(written, overwrite=False),
    ]
    stream.stop()
    assert all(SECRET.encode() not in pickle.dumps(each) for each in travelling)


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_module_that_spark_looks_for_never_raises():
    """Without PySpark, without Arrow: it has no source, and breaks nobody else's."""
    refuse = REFUSE_DJANGO.replace('"psycopg"', '"pyspark", "pyarrow"')
    assert run(f"{refuse}\nimport pyspark_delayed_queue as m\nprint(dir(m)[:1])") != ""
    found = "import pyspark_delayed_queue as m; print(m.DefaultSource.name())"
    assert run(found) == "delayed_queue\n"


def test_the_source_knows_no_django():
    refuse = REFUSE_DJANGO.replace(', "psycopg"', "")
    modules = "source session draining ledger snapshots staging"
    imports = "\n".join(f"import delayed_queue.spark.{name}" for name in modules.split())
    assert run(f"{refuse}\n{imports}\nprint('imported')") == "imported\n"


def test_importing_the_package_imports_neither_spark_nor_arrow():
    code = (
        "import delayed_queue.spark, sys\n"
        "print([name for name in ('pyspark', 'pyarrow', 'psycopg') if name in sys.modules])"
    )
    assert run(code) == "[]\n"
