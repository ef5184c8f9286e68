"""What a command says: while it works, at its end, and of what Spark raises in pages."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any, Final, TextIO

from delayed_queue.exceptions import DelayedQueueError, InvalidConfiguration


class Console:
    """Progress to the standard error, the answer to the standard output."""

    def __init__(
        self, *, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self._began_at = time.monotonic()

    def progress(self, text: str) -> None:
        """Say what is being done, after how many seconds."""
        passed = time.monotonic() - self._began_at
        self._err.write(f"[{passed:6.1f} s] {text}\n")
        self._err.flush()

    def warn(self, text: str) -> None:
        self._err.write(f"{text}\n")
        self._err.flush()

    def answer(self, report: dict[str, Any], lines: Sequence[str]) -> None:
        """Write the report: as JSON, or in the given words."""
        text = json.dumps(report, default=str) if self.as_json else "\n".join(lines)
        self._out.write(f"{text}\n")
        self._out.flush()


_LAG: Final = {
    "due": "Due messages that the drain has not leased, up to 10,000.",
    "oldest_due_seconds": "How late the earliest of them is.",
    "lease_age_seconds": "For how long the drain holds its oldest lease.",
}


class Metrics:
    """The figures of commands in the registry of Prometheus that workers have theirs in."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge

        prefix = "delayed_queue_pipeline"
        self._messages = Counter(
            f"{prefix}_messages", "Messages of commands, by what became of them.",
            ["command", "queue", "outcome"],
        )  # fmt: skip
        self._lag = {
            name: Gauge(f"{prefix}_{name}", text, ["queue"], multiprocess_mode="liveall")
            for name, text in _LAG.items()
        }

    def count(self, command: str, queue: str, outcomes: Mapping[str, int]) -> None:
        for outcome, number in outcomes.items():
            self._messages.labels(command, queue, outcome).inc(number)

    def lag(self, queue: str, report: Mapping[str, int]) -> None:
        """Note what a stream's ``reportLatestOffset`` says."""
        self._lag["due"].labels(queue).set(report["due"])
        for name in ("oldest_due", "lease_age"):
            self._lag[f"{name}_seconds"].labels(queue).set(report[f"{name}_ms"] / 1000)
        self.count("drain", queue, {"redelivered": report["redelivered"]})


@cache
def metrics() -> Metrics | None:
    """Return the metrics of this process, once; None without prometheus-client."""
    return Metrics() if find_spec("prometheus_client") is not None else None


def count(command: str, queue: str, outcomes: Mapping[str, int]) -> None:
    """Add up what became of messages, where somebody may ask for it."""
    if (found := metrics()) is not None:
        found.count(command, queue, outcomes)


def serve_metrics(address: str) -> None:
    """Answer scrapes at ``host:port`` while the process lives."""
    host, _, port = address.rpartition(":")
    if metrics() is None:
        raise InvalidConfiguration(
            "--metrics needs prometheus-client: pip install 'django-delayed-queue[metrics]'."
        )
    from prometheus_client import start_http_server

    start_http_server(int(port), host or "127.0.0.1")


def aligned(rows: Sequence[Sequence[Any]], *, names: int = 1) -> list[str]:
    """Return the rows as a table: the first columns are names, the rest are figures."""
    cells = [[cell(each) for each in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if index < names else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def span(seconds: float) -> str:
    """Return a time span as people say it, three figures long."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"


BINARY: Final = "pip install 'psycopg[binary]'"

# The last line of a Python traceback, wherever Spark has put it.
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w+): (.+)$", re.MULTILINE)
_OURS: Final = re.compile(r"delayed_queue\.[\w.]*\.([A-Z]\w+): (.+)$", re.MULTILINE)
# What psycopg says, before it lists what it has tried.
_NO_LIBPQ: Final = "no pq wrapper available"
_CLASS: Final = re.compile(r"^\[(\w+(?:\.\w+)*)\]\s*")
_JAVA: Final = re.compile(
    r"^(?:: |Caused by: )?((?:java|org)\.[\w.$]+(?:Exception|Error)): (.+)$", re.M
)


_NO_SOURCE: Final = re.compile(r"Failed to find (?:the )?data source: (\w+)", re.IGNORECASE)
_NO_STORAGE: Final = re.compile(
    r"Class org\.apache\.hadoop\.fs\.(s3a|gs|azurebfs|azure)\.|No FileSystem for scheme \"(\w+)\""
)
_STORAGES: Final = {
    "s3a": "s3a://", "s3": "s3a://, as s3:// is called here", "s3n": "s3a://", "gs": "gs://",
    "azurebfs": "abfss://", "abfs": "abfss://", "abfss": "abfss://", "azure": "abfss://",
    "wasb": "abfss://", "wasbs": "abfss://",
}  # fmt: skip
# By what Spark lacks: what to add, and what else is to be set.
_PACKAGES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "storage": ("org.apache.spark:spark-hadoop-cloud_2.13:{spark}", {}),
    "avro": ("org.apache.spark:spark-avro_2.13:{spark}", {}),
    "delta": (
        "io.delta:delta-spark_{line}_2.13:VERSION",
        {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    ),
    "iceberg": (
        "org.apache.iceberg:iceberg-spark-runtime-{line}_2.13:VERSION",
        {"spark.sql.catalog.NAME": "org.apache.iceberg.spark.SparkCatalog"},
    ),
}


def package_of(text: str) -> str | None:
    """Return which package to add, where that is what Spark says; it comes without most of them."""
    source, storage = _NO_SOURCE.search(text), _NO_STORAGE.search(text)
    name = source[1].lower() if source else ""
    if source and name in _PACKAGES:
        return _advice(f"the format {name!r}", name)
    scheme = (storage[1] or storage[2]) if storage else ""
    if scheme in _STORAGES:
        return _advice(f"files at {_STORAGES[scheme]}", "storage")
    return None


def _advice(what: str, name: str) -> str:
    spark = metadata.version("pyspark")
    line = ".".join(spark.split(".")[:2])
    package, settings = _PACKAGES[name]
    said = {"spark.jars.packages": package.format(spark=spark, line=line), **settings}
    release = f" VERSION is a release made for Spark {line}." if "VERSION" in package else ""
    return (
        f"Spark {spark} comes without {what}; add the package: "
        f"{' '.join(f'--conf {key}={value}' for key, value in said.items())}.{release}"
    )


def sentence_of(error: BaseException) -> str:
    """Return what went wrong: our own words where they are in it, else Spark's first line."""
    if isinstance(error, DelayedQueueError):
        return str(error)
    if isinstance(error, ImportError) and _NO_LIBPQ in str(error):
        return f"psycopg finds no libpq: {BINARY}, or install libpq."
    text = str(error)
    if (advice := package_of(text)) is not None:
        return advice
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1])
    if "Traceback (most recent call last)" in text:
        raised = _RAISED.findall(text)
        if raised:
            return f"{raised[-1][0]}: {raised[-1][1]}"
    java = _JAVA.findall(text)
    if java and text.startswith("An error occurred while calling"):
        return f"{java[-1][0].rpartition('.')[2]}: {java[-1][1]}"
    first = text.strip().partition("\n")[0]
    return _CLASS.sub("", first) or type(error).__name__
