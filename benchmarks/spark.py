"""The data source for Spark beside COPY and bare SQL: ``python -m benchmarks.spark``.

With ``--executors`` the measures run once for each number of executors, processes with one core.
With ``--jdbc`` and a driver's jar, Spark's JDBC source reads the same rows.
"""

from __future__ import annotations

import io
import os
import resource
import shutil
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from psycopg.conninfo import conninfo_to_dict

from benchmarks.shared.database import Connection, benchmark_database, conninfo_of
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table, say
from benchmarks.shared.rounds import Figures, ratios, spread
from benchmarks.spark_bare import KIND, bare_drain, copy_all, encode
from benchmarks.workerapp.spark_handlers import SLOW_SECONDS
from delayed_queue.spark import build_session, counts, drain
from delayed_queue.spark.pipeline import archives, drains, imports
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.pipeline.handling import Handling
from delayed_queue.spark.pipeline.inputs import Input
from delayed_queue.spark.pipeline.records import Rules
from delayed_queue.spark.pipeline.tables import KNOWN
from delayed_queue.spark.settings import TASKS, VARIABLE

QUEUE: Final = KIND.partition("|")[0]
WARM: Final = 20_000
AT_ONCE: Final = 20
FAR: Final = 500_000_000
# A ratio's name, what is compared, and the aim.
RATIOS: Final = (
    ("write", "COPY", 0.95), ("all duplicates", "write", 1.0), ("drain", "bare drain", 0.5),
    ("read", "JDBC", 0.8), ("handlers, one old id", "handlers", 0.9),
    ("calls of 50 ms", "all calls at once", 0.7), ("import", "write", 0.6),
    ("import of CSV", "spark.read.csv + df.write", 0.7),
    ("import of JSON", "df.write of JSON", 0.5),
)  # fmt: skip
FULL_ROW: Final = (
    "id bigint, key string, kind string, payload binary, scheduled_at timestamp, "
    "scheduled_at_initially timestamp, created_at timestamp, lock_uuid string, attempts int, "
    "headers string, due_at timestamp"
)
LETTERS: Final = """
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt"
)
SELECT
    'orders|json', 'key-' || md5(n::text), convert_to(repeat('x', 120), 'UTF8'), 3,
    'attempts exhausted: ValueError', 0, 0, n
FROM generate_series(1, %(count)s) AS n
"""
# The first id, then as many others from another id on.
DUE: Final = """
INSERT INTO delayed_queue (
    id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT CASE WHEN n = 1 THEN 1 ELSE n + %(gap)s END, 'k' || n, %(kind)s, '\\x31', 0, 0, 0
FROM generate_series(1, %(count)s::bigint) AS n
"""


def main() -> None:
    """Measure what the options name, on each number of executors."""
    options = _options()
    with (
        benchmark_database(options.database_url, ("delayed_queue.spark",)) as connection,
        tempfile.TemporaryDirectory(prefix="dq-spark-") as directory,
    ):
        report = Report(describe(connection))
        os.environ[VARIABLE], os.environ[TASKS] = conninfo_of(connection), str(options.cores)
        masters = [f"local-cluster[{count},1,1024]" for count in options.executors]
        for master in masters or [f"local[{options.cores},4]"]:
            bench = Bench(connection, Path(directory), options, master)
            for name in options.only:
                MEASURES[name](bench)
            bench.spark.stop()
            report.tables += bench.tables()
    report.write(options)


def _options() -> Namespace:
    options = Options(".spark", __doc__).size("rounds", 3, 1, "rounds of each measure")
    options.size("cores", 4, 2, "parallel tasks")
    options.size("rows", 2_000_000, 20_000, "rows that are written and read")
    options.size("drained", 1_000_000, 20_000, "messages of a drain")
    options.size("archived", 1_000_000, 20_000, "dead letters of an archive")
    options.size("handled", 8_000, 400, "messages for handlers")
    options.parser.add_argument("--executors", type=int, nargs="*", default=[])
    options.parser.add_argument("--jdbc", metavar="JAR", help="PostgreSQL's driver for Java")
    names = list(MEASURES)
    options.parser.add_argument("--only", nargs="+", choices=names, default=names)
    return options.parse()


@dataclass(slots=True)
class Bench:
    """A database, a session of Spark, and the rates that were measured."""

    connection: Connection
    directory: Path
    options: Namespace
    master: str
    rates: Figures = field(default_factory=dict)
    spark: Any = field(init=False)

    def __post_init__(self) -> None:
        conf = {"spark__driver__memory": "2g", "spark__ui__enabled": "false"}
        # On a busy machine a Python worker takes its time to start.
        conf["spark__python__authenticate__socketTimeout"] = "60s"
        if self.options.jdbc:
            conf["spark__jars"] = self.options.jdbc
        self.spark = build_session("benchmark", self.master, **conf)
        self.spark.sparkContext.setLogLevel("ERROR")
        self.write(self.rows(WARM))

    def timed(self, name: str, count: int, work: Callable[[], object]) -> None:
        """Record the rows a second of the work."""
        started_at = time.perf_counter()
        work()
        rate = count / (time.perf_counter() - started_at)
        self.rates.setdefault(name, []).append(rate)
        say(f"{name}: {rate:,.0f} rows/s")

    def timed_empty(self, name: str, count: int, work: Callable[[], object]) -> None:
        """Record the rows a second of the work, which starts on empty tables."""
        self.empty()
        self.timed(name, count, work)

    def empty(self) -> None:
        self.connection.execute("TRUNCATE delayed_queue, delayed_queue_offer_ledger")
        self.connection.execute("CHECKPOINT")

    def tables(self) -> list[Table]:
        rates = Table(f"{self.master}, rows a second", ("work", "median (rounds)"))
        rates.rows = [(name, spread(found)) for name, found in self.rates.items()]
        compared = Table(f"{self.master}, ratios", ("work", "of", "ratio", "aim"))
        for ours, theirs, aim in RATIOS:
            if ours in self.rates and theirs in self.rates:
                shown = spread(ratios(self.rates[ours], self.rates[theirs]), ".2f")
                compared.rows.append((ours, theirs, shown, f"{aim:g}"))
        return [each for each in (rates, compared) if each.rows]

    # Rows and what is done with them

    def rows(self, count: int) -> str:
        """Write rows as Parquet in random order of keys."""
        path = self.directory / f"rows-{count}"
        if not path.exists():
            self.spark.range(0, count, 1, 8).selectExpr(
                "substr(sha2(string(id), 256), 1, 32) AS key",
                "binary(concat('{\"id\":', id, ',\"text\":\"', repeat('x', 90), '\"}')) AS payload",
            ).write.parquet(str(path))
        return str(path)

    def write(self, rows: str) -> None:
        """Offer the rows; check that each was counted."""
        self.offer(self.spark.read.parquet(rows))

    def offer(self, frame: Any, kind: str = KIND, **given: str) -> None:
        """Offer the rows of a frame; check that each was counted."""
        job = uuid4().hex
        writer = frame.write.format("delayed_queue")
        writer.options(kind=kind, job=job, **given).mode("append").save()
        if not (found := counts(job)).is_complete:
            raise RuntimeError(found)

    def read(self) -> None:
        reader = self.spark.read.format("delayed_queue").option("kind", KIND).schema(FULL_ROW)
        frame = reader.option("numPartitions", str(self.options.cores)).load()
        frame.write.format("noop").mode("overwrite").save()

    def read_by_jdbc(self) -> None:
        """Read the same columns in as many ranges of ids."""
        parts = conninfo_to_dict(os.environ[VARIABLE])
        table = "(SELECT *, headers::text AS told FROM delayed_queue) AS messages"
        low, high = self.connection.execute(
            "SELECT min(id), max(id) FROM delayed_queue"
        ).fetchone() or (0, 0)
        reader = self.spark.read.format("jdbc").options(
            url=f"jdbc:postgresql://{parts['host']}:{parts.get('port', 5432)}/{parts['dbname']}",
            user=parts["user"], password=parts.get("password", ""), dbtable=table,
            driver="org.postgresql.Driver", fetchsize="10000", partitionColumn="id",
            lowerBound=str(low), upperBound=str(high), numPartitions=str(self.options.cores),
        )  # fmt: skip
        reader.load().drop("headers").write.format("noop").mode("overwrite").save()

    def drain(self, prefetch: str) -> None:
        lake = str(self.directory / uuid4().hex)
        given = {"kind": KIND, "leaseConnections": "4", "maxMessagesPerTrigger": "200000"}
        stream = self.spark.readStream.format("delayed_queue")
        frame = stream.options(prefetch=prefetch, numPartitions="4", **given).load()
        drain(frame.writeStream.format("parquet").option("path", f"{lake}/rows"), f"{lake}/log")
        shutil.rmtree(lake)

    def import_(self, path: str, job: str, form: str = "parquet", codec: str = "bytes") -> None:
        """Run the command ``import``; check that each record became a message."""
        source = Input((path,), form, Rules(QUEUE, codec=codec))
        report = imports.run(self.spark, imports.ImportOptions(source=source, job=job), _console())
        if report.created != report.input:
            raise RuntimeError(report)

    def handle(self, name: str, count: int, concurrency: int = 1) -> None:
        """Run the command ``drain --handler``; check that no message is left."""
        place = str(self.directory / uuid4().hex)
        handling = Handling(
            f"benchmarks.workerapp.spark_handlers:{name}", KIND, "bytes", concurrency=concurrency
        )
        options = drains.DrainOptions(KIND, place, handling=handling)
        found = drains.run(self.spark, options, _console(), threading.Event())
        shutil.rmtree(place)
        if found.ended is None or found.ended["done"] != count:
            raise RuntimeError(found)

    def archive(self, count: int) -> None:
        """Run the command ``archive``; check that each dead letter was archived and deleted."""
        lake = str(self.directory / uuid4().hex)
        now = int(time.time() * 1000)
        options = archives.ArchiveOptions((KNOWN["dead-letters"],), now, lake)
        [found] = archives.run(self.spark, options, _console())
        shutil.rmtree(lake)
        if (found.rows, found.deleted) != (count, count):
            raise RuntimeError(found)


def _console() -> Console:
    return Console(out=io.StringIO(), err=io.StringIO())


def _write(bench: Bench) -> None:
    count, rows = bench.options.rows, bench.rows(bench.options.rows)
    encoded, dsn = encode(rows), os.environ[VARIABLE]
    for _ in range(bench.options.rounds):
        bench.timed_empty("COPY", count, lambda: copy_all(encoded, dsn))
        bench.timed_empty("write", count, lambda: bench.write(rows))
        bench.timed("all duplicates", count, lambda: bench.write(rows))


def _read(bench: Bench) -> None:
    bench.empty()
    bench.write(bench.rows(bench.options.rows))
    for _ in range(bench.options.rounds):
        bench.timed("read", bench.options.rows, bench.read)
        if bench.options.jdbc:
            bench.timed("JDBC", bench.options.rows, bench.read_by_jdbc)


def _drain(bench: Bench) -> None:
    count, dsn = bench.options.drained, os.environ[VARIABLE]
    works: dict[str, Callable[[], None]] = {
        "bare drain": partial(bare_drain, dsn, count),
        "drain": partial(bench.drain, "true"),
        "drain, not ahead": partial(bench.drain, "false"),
    }
    for _ in range(bench.options.rounds):
        for name, work in works.items():
            bench.empty()
            bench.write(bench.rows(count))
            bench.timed(name, count, work)


def _handlers(bench: Bench) -> None:
    count = bench.options.handled
    for _ in range(bench.options.rounds):
        for name, gap in (("handlers", 0), ("handlers, one old id", FAR)):
            _fill(bench, count, gap)
            bench.timed(name, count, lambda: bench.handle("quick", count))
        _fill(bench, count * 5, 0)
        bench.timed("calls of 50 ms", count * 5, lambda: bench.handle("slow", count * 5, AT_ONCE))
    most = bench.options.cores * AT_ONCE / SLOW_SECONDS
    bench.rates["all calls at once"] = [most] * bench.options.rounds


def _fill(bench: Bench, count: int, gap: int) -> None:
    bench.empty()
    bench.connection.execute(DUE, {"count": count, "kind": KIND, "gap": gap})
    bench.connection.execute("VACUUM ANALYZE delayed_queue")


def _command(bench: Bench) -> None:
    count = bench.options.rows
    rows = bench.rows(count)
    for _ in range(bench.options.rounds):
        bench.timed_empty("write", count, lambda: bench.write(rows))
        job = uuid4().hex
        bench.timed_empty("import", count, partial(bench.import_, rows, job))
        bench.timed("the same import again", count, partial(bench.import_, rows, job))


def _files(bench: Bench) -> None:
    """Import CSV and JSON lines, and offer the same rows without the command's checks."""
    count, spark = bench.options.rows, bench.spark
    texts = spark.read.parquet(bench.rows(count)).selectExpr(
        "key", "CAST(payload AS STRING) payload"
    )
    csv, lines = (str(bench.directory / f"{count}.{ending}") for ending in ("csv", "jsonl"))
    texts.write.csv(csv, header=True, escape='"', mode="overwrite")
    nested = "from_json(payload, 'id bigint, text string') AS payload"
    texts.selectExpr("key", nested).write.json(lines, mode="overwrite")
    kind = f"{QUEUE}|json"
    for _ in range(bench.options.rounds):
        plain = spark.read.csv(csv, header=True, escape='"', schema="key string, payload string")
        bench.timed_empty("spark.read.csv + df.write", count, partial(bench.offer, plain, kind))
        job = uuid4().hex
        bench.timed_empty("import of CSV", count, partial(bench.import_, csv, job, "csv", "json"))
        bench.timed_empty("df.write of JSON", count, partial(bench.offer, texts, kind))
        job = uuid4().hex
        bench.timed_empty(
            "import of JSON", count, partial(bench.import_, lines, job, "jsonl", "json")
        )


def _archive(bench: Bench) -> None:
    for _ in range(bench.options.rounds):
        for count in (bench.options.archived // 10, bench.options.archived):
            bench.connection.execute("TRUNCATE delayed_queue_dead_letter")
            bench.connection.execute(LETTERS, {"count": count})
            bench.connection.execute("VACUUM ANALYZE delayed_queue_dead_letter")
            bench.timed_empty(f"archive of {count:,}", count, partial(bench.archive, count))


MEASURES: Final = {
    "write": _write, "read": _read, "drain": _drain, "handlers": _handlers, "command": _command,
    "files": _files, "archive": _archive,
}  # fmt: skip

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    main()
