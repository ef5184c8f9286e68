"""Runs commands of the pipeline, one after the other, in one process and so on one Spark.

Each is ``manage.py queuepipeline …`` as anybody types it; only Spark, which takes ten seconds to
start, is started once for all of them.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import django
from django.core.management import execute_from_command_line
from django.db import connections

from delayed_queue.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES: Final = 4
CONF: Final = {
    # A page of its own, and parts for a cluster, are more than a demo needs.
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
}


def serve(heard: Callable[[], bytes]) -> None:
    """Run what is heard, a JSON object a line, until an empty line comes or a command fails."""
    django.setup()
    with _spark():
        while line := heard():
            order = json.loads(line)
            code, answer = _run(order["arguments"])
            _put(Path(order["answer"]), {"code": code, "answer": answer})
            if code == 1:
                sys.exit(code)


@contextmanager
def _spark() -> Iterator[None]:
    # Here: this module is named by processes that have no Spark.
    from delayed_queue.spark.connecting import VARIABLE, dsn_from_django
    from delayed_queue.spark.jobs.console import Console
    from delayed_queue.spark.starting import session

    # Before the JVM starts: executors have its environment.
    os.environ[VARIABLE] = dsn_from_django(connections["default"].settings_dict)
    settings = replace(SparkSettings(), CORES=min(CORES, os.cpu_count() or 1), CONF=CONF)
    with session(settings, Console(), "demo") as spark:
        _rehearse(spark)
        yield


def _rehearse(spark: SparkSession) -> None:
    """Do once what is slow the first time, while the acts before still wait: a job, the plots."""
    from matplotlib.figure import Figure

    Figure().savefig(io.BytesIO())
    spark.range(1).selectExpr("md5(string(id))").collect()


def _run(arguments: list[str]) -> tuple[int, Any]:
    """Return a command's exit code, and its answer when it gave one."""
    said = io.StringIO()
    code = 0
    with redirect_stdout(said):
        try:
            execute_from_command_line(["manage.py", "queuepipeline", *arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, json.loads(said.getvalue()) if said.getvalue() else None


def _put(path: Path, answer: dict[str, Any]) -> None:
    """Write the answer in one step: who waits for the file reads it whole."""
    written = path.with_suffix(".part")
    written.write_text(json.dumps(answer), encoding="utf-8")
    written.rename(path)
