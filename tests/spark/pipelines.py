"""Inputs, options, letters and archives for the tests of the pipeline's commands."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from delayed_queue.messages import to_milliseconds
from delayed_queue.models import DeadLetter
from delayed_queue.spark.pipeline import archives, imports
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.pipeline.inputs import Input
from delayed_queue.spark.pipeline.records import Rules
from delayed_queue.spark.pipeline.tables import KNOWN

TARGETS = "tests.spark.pipeline_targets"
CONSOLE = Console(out=io.StringIO(), err=io.StringIO())


def lines(path: Path, records: list[Any]) -> str:
    """Write JSON lines; write text as it is."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return str(path)


def options(tmp_path: Path, *paths: str, **changes: Any) -> imports.ImportOptions:
    mapping = changes.pop("mapping", {})
    form = changes.pop("form", "jsonl")
    changes.setdefault("max_bad_ratio", 1.0)
    rules = Rules("orders", mapping=mapping, time_zone=changes.pop("time_zone", None))
    return imports.ImportOptions(
        Input(paths, form, rules), quarantine=str(tmp_path / "quarantine"), **changes
    )


def schedules(connection: psycopg.Connection[Any]) -> list[int]:
    rows = connection.execute('SELECT "scheduledAt" FROM delayed_queue ORDER BY 1')
    return [row[0] for row in rows]


def letters(count: int, **values: Any) -> None:
    DeadLetter.objects.bulk_create(
        DeadLetter(
            kind="orders|json", key=f"k{n}", payload=json.dumps({"n": n}).encode(),
            headers={"h": str(n)} if n % 2 else None, attempts=3,
            reason="attempts exhausted: ValueError" if n % 3 else "rejected",
            last_error=None, first_error=None,
            scheduled_at_initially=datetime(2026, 1, 1, tzinfo=UTC),
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            died_at=datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=n), **values,
        )
        for n in range(count)
    )  # fmt: skip


def archive(spark: Any, lake: str, **changes: Any) -> archives.Archived:
    cutoff = to_milliseconds(datetime(2026, 2, 1, tzinfo=UTC))
    asked = archives.ArchiveOptions((KNOWN["dead-letters"],), cutoff, lake, **changes)
    return archives.run(spark, asked, CONSOLE)[0]


@contextmanager
def holding(url: str, key: str) -> Iterator[psycopg.Connection[Any]]:
    """Lock a letter, for whose deletion tasks then wait."""
    with psycopg.connect(url) as holder:
        holder.execute(
            """SELECT FROM delayed_queue_dead_letter WHERE "pKey" = %s FOR UPDATE""", [key]
        )
        yield holder
