"""Where imported rows go: the queue, or a function of the application's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from delayed_queue.messages import Counts
from delayed_queue.spark.jobs.loading import close_connections, load_application
from delayed_queue.spark.jobs.records import row_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
