"""Pickles for the executors hold no password; imports raise nothing (P5)."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.spark.settings import VARIABLE
from delayed_queue.spark.source.datasource import DelayedQueueDataSource
from delayed_queue.spark.source.schema import read_schema
from tests.support.processes import ROOT
from tests.words.test_imports import REFUSE_DJANGO

SECRET = "hunter2-s3cret"
BREAK_THE_SOURCE = """
import sys

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "delayed_queue.spark.source.datasource":
            raise RuntimeError("half installed")

sys.meta_path.insert(0, Broken())
"""


def test_nothing_that_travels_holds_the_password(
    queue: DelayedQueue, known: str, monkeypatch: pytest.MonkeyPatch
):
    """Over the socket, where the server ignores an unneeded password."""
    monkeypatch.setenv(VARIABLE, f"{known} password={SECRET}")
    queue.offer_or_update("a", 1)
    source = DelayedQueueDataSource({"queue": "orders"})
    schema = source.schema()
    reader, stream = source.reader(schema), source.streamReader(schema)
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    rows = read_schema(None)
    written = type(rows)([rows["key"], rows["payload"]])
    parts = reader.partitions(), stream.partitions(stream.initialOffset(), end)
    assert all(parts)
    travelling = [
        source,
        reader,
        *parts[0],
        stream,
        end,
        *parts[1],
        source.writer(written, overwrite=False),
        source.streamWriter(written, overwrite=False),
    ]
    stream.stop()
    assert all(SECRET.encode() not in pickle.dumps(each) for each in travelling)


def run(code: str) -> str:
    return told(code)[0]


def told(code: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_module_that_spark_looks_for_never_raises():
    """Without PySpark or Arrow it has no source, and breaks no other import."""
    refuse = REFUSE_DJANGO.replace('"psycopg"', '"pyspark", "pyarrow"')
    look = "\nimport pyspark_delayed_queue as m\nprint(hasattr(m, 'DefaultSource'))"
    output, errors = told(refuse + look)
    assert output == "False\n"
    assert "event=source_not_installed" in errors
    assert "pip install" in errors
    found = "import pyspark_delayed_queue as m; print(m.DefaultSource.name())"
    assert run(found) == "delayed_queue\n"

    output, errors = told(BREAK_THE_SOURCE + look)
    assert output == "False\n"
    assert "event=source_unavailable" in errors
    assert "RuntimeError: half installed" in errors


def test_the_source_knows_no_django():
    refuse = REFUSE_DJANGO.replace(', "psycopg"', "")
    modules = "datasource leases offering reader writer"
    names = [f"source.{name}" for name in modules.split()]
    names += ["pipeline.session", "pipeline.drains", "pipeline.doctor"]
    imports = "\n".join(f"import delayed_queue.spark.{name}" for name in names)
    assert run(f"{refuse}\n{imports}\nprint('imported')") == "imported\n"


def test_importing_the_package_imports_neither_spark_nor_arrow():
    code = (
        "import delayed_queue.spark, sys\n"
        "print([name for name in ('pyspark', 'pyarrow', 'psycopg') if name in sys.modules])"
    )
    assert run(code) == "[]\n"
