"""The application's own functions, by their paths: loaded in executors, and given rows."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import Counts
from delayed_queue.spark.jobs.records import row_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SETTINGS: Final = "DJANGO_SETTINGS_MODULE"


def load_application(path: str) -> Any:
    """Return what the path names, after Django was set up where there are settings for it."""
    if _SETTINGS in os.environ:
        setup_django()
    return load(path)


def load(path: str) -> Any:
    """Return what ``package.module:name`` names."""
    module, _, name = path.partition(":")
    try:
        return attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfiguration(
            f"{path!r} cannot be loaded: {error}. Write package.module:function."
        ) from error


def setup_django() -> None:
    """Make Django's models usable in this process: an executor's worker has not booted it."""
    if _SETTINGS not in os.environ:
        raise InvalidConfiguration(
            "DJANGO_SETTINGS_MODULE is not set in the executors; say it with "
            "--conf spark.executorEnv.DJANGO_SETTINGS_MODULE=…"
        )
    # By name, because this side of the package imports no Django where none is wanted.
    importlib.import_module("django").setup()


def close_connections() -> None:
    """Close what the application opened by Django: an executor's process lives on, unused."""
    if "django.db" in sys.modules:
        sys.modules["django.db"].connections.close_all()


Target = Callable[[Iterable[dict[str, Any]]], Counts]
_COUNTS: Final = "created bigint, updated bigint, ignored bigint"


def check_of(target: str) -> str | None:
    """Return the dotted path of the target's own check, where it brings one."""
    return f"{target}.check" if callable(getattr(load_application(target), "check", None)) else None


def deliver(frame: DataFrame, target: str, codec: str) -> Counts:
    """Call the target once for each partition; return the sum of what it counted."""
    rows = frame.mapInArrow(_Delivery(target, codec), _COUNTS).collect()
    return sum((Counts(*row) for row in rows), Counts())


class _Delivery:
    """Runs in the executors; a partition that fails is given again, whole."""

    def __init__(self, target: str, codec: str) -> None:
        self._target = target
        self._codec = codec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function: Target = load_application(self._target)
        try:
            counted = function(self._rows(batches))
        finally:
            close_connections()
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "created": counted.created,
                    "updated": counted.updated,
                    "ignored": counted.ignored,
                }
            ],
            schema=pa.schema([(name, pa.int64()) for name in ("created", "updated", "ignored")]),
        )

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        for batch in batches:
            for row in batch.to_pylist():
                yield row_of(
                    row["kind"], row["key"], row["payload"],
                    (row["schedule_ms"], row["delay_ms"]), row["headers"], self._codec,
                )  # fmt: skip
