"""The data source for Spark beside COPY, JDBC and bare SQL, on one server in one run.

``make bench-spark``. JDBC needs its driver: Debian's libpostgresql-jdbc-java, or ``--jar``.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.database import benchmark_database, embedded_server
from benchmarks.figures import Line, Plot, say
from benchmarks.spark_growth import measure
from benchmarks.spark_handlers import SLOW, fill, handle
from benchmarks.spark_memory import Memory
from benchmarks.spark_rivals import (
    CONNECTIONS,
    KIND,
    bare_drain,
    copy_all,
    encode,
)
from delayed_queue.spark import build_session, counts, drain
from delayed_queue.spark.pipeline import archives, imports
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.pipeline.inputs import Input
from delayed_queue.spark.pipeline.tables import KNOWN
from delayed_queue.spark.settings import TASKS, VARIABLE
from delayed_queue.spark.source.records import Rules

JAR: Final = "/usr/share/java/postgresql.jar"
WARM: Final = 50_000
ALL: Final = (
    "write", "read", "drain", "handlers", "command", "queues", "archive", "growth", "scaling",
    "import",
)  # fmt: skip
SCALING: Final = Path("docs/benchmarks/spark-scaling.svg")
AIMS: Final = {
    "write against 4 connections of binary COPY": 0.9,
    "write against Spark's JDBC": 1.5,
    "all duplicates against the first import": 1.0,
    "read of full rows against Spark's JDBC": 0.9,
    "drain against bare lease and acknowledgement": 0.6,
    "handlers with one old id against without": 0.9,
    "command import against write": 0.6,
    "command import of JSON against write": 0.3,
    "calls of 50 ms against all at once": 0.8,
    "command import of 10,000 queues against one": 0.8,
    "write of 10,000 queues against one": 0.8,
}
# Of the calls that wait, in each task.
_AT_ONCE: Final = 20
# As a service with a queue for each of its customers has.
MANY: Final = 10_000
Rates = dict[str, list[float]]


def main() -> None:
    options = _options()
    with _database() as connection, _directory() as directory:
        os.environ[VARIABLE] = connection.info.dsn + _password(connection)
        os.environ[TASKS] = str(CONNECTIONS)
        bench = Bench(connection, directory, options)
        for name in options.only or ALL:
            getattr(bench, f"measure_{name}")()
        bench.tell()


def _password(connection: psycopg.Connection[Any]) -> str:
    return f" password={connection.info.password}" if connection.info.password else ""


def _database() -> AbstractContextManager[psycopg.Connection[Any]]:
    return benchmark_database(embedded_server(), apps=["delayed_queue.spark"])


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dq-spark-") as directory:
        yield Path(directory)


def _options() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--drained", type=int, default=1_000_000)
    parser.add_argument("--imported", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--archived", type=int, default=1_000_000)
    parser.add_argument("--executors", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--jar", default=JAR)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", choices=ALL)
    parser.add_argument("--handled", type=int, default=8_000)
    return parser.parse_args()


class Bench:
    """One database, one session of Spark at a time, rates in rows per second."""

    def __init__(
        self, connection: psycopg.Connection[Any], directory: Path, options: Namespace
    ) -> None:
        self.connection = connection
        self.directory = directory
        self.options = options
        self.rates: Rates = {}
        self.ratios: dict[str, float] = {}
        self._spark: Any = None

    # What is compared

    def measure_write(self) -> None:
        rows = self._rows(self.options.rows)
        encoded = encode(rows, CONNECTIONS)
        self._warm_up()
        for _ in range(self.options.rounds):
            self._timed("COPY", self.options.rows, lambda: copy_all(encoded, self._dsn()))
            self._timed("write", self.options.rows, lambda: self._write(rows))
            self._timed("all duplicates", self.options.rows, lambda: self._write(rows), keep=True)
            self._timed("write, by key", self.options.rows, lambda: self._write_by_key(rows))
            if self._has_jdbc():
                self._timed("JDBC write", self.options.rows, lambda: self._jdbc_write(rows))
        self._ratio("write against 4 connections of binary COPY", "write", "COPY")
        self._ratio("all duplicates against the first import", "all duplicates", "write")
        if self._has_jdbc():
            self._ratio("write against Spark's JDBC", "write", "JDBC write")

    def measure_read(self) -> None:
        self._empty()
        self._write(self._rows(self.options.rows))
        for _ in range(self.options.rounds + 1):  # the first warms both up
            self._timed("read", self.options.rows, self._read, keep=True)
            if self._has_jdbc():
                self._timed("JDBC read", self.options.rows, self._jdbc_read, keep=True)
        for name in ("read", "JDBC read"):
            self.rates[name] = self.rates.get(name, [])[1:]
        if self._has_jdbc():
            self._ratio("read of full rows against Spark's JDBC", "read", "JDBC read")

    def measure_drain(self) -> None:
        count = self.options.drained
        rows = self._rows(count)
        self._warm_up()
        self._drain(prefetch="true")
        for _ in range(self.options.rounds):
            for name, work in (
                ("bare drain", lambda: bare_drain(self._dsn(), count)),
                ("drain", lambda: self._drain(prefetch="true")),
                ("drain, not ahead", lambda: self._drain(prefetch="false")),
            ):
                self._empty()
                self._write(rows)
                self._timed(name, count, work, keep=True)
        self._ratio("drain against bare lease and acknowledgement", "drain", "bare drain")

    def measure_handlers(self) -> None:
        count = self.options.handled
        evenly, skewed = "handlers", "handlers, one old id"
        for _ in range(self.options.rounds + 1):  # the first warms both up
            for name, one_is_old in ((evenly, False), (skewed, True)):
                fill(self.connection, count, one_is_old=one_is_old)
                self._timed(name, count, lambda: self._handle("quick", count), keep=True)
        for name in (evenly, skewed):
            del self.rates[name][0]
        self._ratio("handlers with one old id against without", skewed, evenly)
        self._measure_waiting(count * 5)

    def _measure_waiting(self, count: int) -> None:
        name, most = "calls of 50 ms", "calls of 50 ms, all at once"
        for _ in range(self.options.rounds):
            fill(self.connection, count, one_is_old=False)
            self._timed(name, count, lambda: self._handle("slow", count, _AT_ONCE), keep=True)
        self.rates[most] = [CONNECTIONS * _AT_ONCE / SLOW] * self.options.rounds
        self._ratio("calls of 50 ms against all at once", name, most)

    def _handle(self, name: str, count: int, concurrency: int = 1) -> None:
        handle(self.spark(), self.directory, name, count, concurrency)

    def measure_import(self) -> None:
        count = self.options.imported
        rows = self._rows(count)
        self._empty()
        peak = Memory()
        with peak:
            self._timed("import", count, lambda: self._write(rows))
        seconds = count / self.rates["import"][-1]
        say(f"{count:,} rows in {seconds:.1f} s; Python workers at most {peak.worker:,} MB each")

    def measure_command(self) -> None:
        """``import`` of clean files beside the offer that it ends in; and the same once more."""
        count = self.options.rows
        rows, lines = self._rows(count), self._lines(count)
        encoded = encode(rows, CONNECTIONS)
        self._warm_up()
        for number in range(self.options.rounds):
            self._timed("COPY", count, lambda: copy_all(encoded, self._dsn()))
            if self._has_jdbc():
                self._timed("JDBC write", count, lambda: self._jdbc_write(rows))
            self._timed("write", count, lambda: self._write(rows))
            asked = self._asked(rows, f"parquet-{number}")
            self._timed("command import", count, partial(self._import, asked))
            before = time.perf_counter()
            self._import(asked)
            say(f"the same import again: {time.perf_counter() - before:.2f} s")
            asked = self._asked(lines, f"lines-{number}", "jsonl", "json")
            self._timed("command import of JSON", count, partial(self._import, asked))
        self._ratio("command import against write", "command import", "write")
        self._ratio("command import of JSON against write", "command import of JSON", "write")

    def measure_queues(self) -> None:
        """``import`` of records that name 10,000 queues beside the same of one; and the offers."""
        count, one, many = self.options.rows, "of one queue", f"of {MANY:,} queues"
        self._warm_up()
        for number in range(self.options.rounds):
            for name, queues in ((one, 1), (many, MANY)):
                rows = self._rows_of(count, queues)
                asked = self._asked(rows, f"queues-{queues}-{number}")
                self._timed(f"command import {name}", count, partial(self._import, asked))
                self._timed(f"write {name}", count, partial(self._write, rows, codec="bytes"))
        for name in ("command import", "write"):
            self._ratio(f"{name} {many} against one", f"{name} {many}", f"{name} {one}")

    def _rows_of(self, count: int, queues: int) -> str:
        """Write the rows with the names of so many queues, which follow each other at random."""
        path = str(self.directory / f"rows-{count}-of-{queues}")
        if not Path(path).exists():
            named = f"concat('tenant-', pmod(hash(key), {queues})) AS queue"
            self.spark().read.parquet(self._rows(count)).selectExpr("*", named).write.parquet(path)
        return path

    def _asked(
        self, rows: str, job: str, form: str = "parquet", codec: str = "bytes"
    ) -> imports.ImportOptions:
        source = Input((rows,), form, Rules(KIND.partition("|")[0], codec=codec))
        return imports.ImportOptions(source=source, job=job)

    def _lines(self, count: int) -> str:
        """Write the rows as JSON lines; return where."""
        path = str(self.directory / f"lines-{count}")
        if not Path(path).exists():
            line = 'concat(\'{"key":"\', key, \'","payload":\', CAST(payload AS STRING), "}")'
            self.spark().read.parquet(self._rows(count)).selectExpr(line).write.text(path)
        return path

    def _import(self, asked: imports.ImportOptions) -> None:
        console = Console(out=io.StringIO(), err=io.StringIO())
        report = imports.run(self.spark(), asked, console)
        if report.created != report.input:
            raise AssertionError(report)

    def measure_archive(self) -> None:
        """``archive`` of dead letters, a tenth of them first; and in how much of it no job runs."""
        count = self.options.archived
        self._archive(WARM)
        for _ in range(self.options.rounds):
            for rows in (count // 10, count):
                self._letters(rows)
                name, began = f"archive of {rows:,}", time.time()
                self._timed(name, rows, partial(self._archive, rows, is_there=True), keep=True)
                seconds = time.time() - began
                share = 1 - busy_since(self.spark(), began) / seconds
                say(f"{name}: {seconds:.1f} s, the driver alone {share:.1%}")

    def measure_growth(self) -> None:
        """The commands by rows and by executors."""
        most = self.options.rows
        table = measure(self, [most // 10, most], self.options.executors)
        print(table.as_markdown())  # noqa: T201

    def archiving(self, count: int) -> Callable[[], object]:
        self._letters(count)
        return lambda: self._archive(count, is_there=True)

    def importing(self, count: int) -> Callable[[], object]:
        rows = self._rows(count)
        self._empty()
        return lambda: self._import(self._asked(rows, uuid4().hex))

    def restart(self, master: str) -> None:
        self._stop()
        self.spark(master)

    def _letters(self, count: int) -> None:
        self.connection.execute("TRUNCATE delayed_queue_dead_letter")
        self.connection.execute(LETTERS, {"count": count})
        self.connection.execute("VACUUM ANALYZE delayed_queue_dead_letter")
        self.connection.execute("CHECKPOINT")

    def _archive(self, count: int, *, is_there: bool = False) -> None:
        if not is_there:
            self._letters(count)
        lake = str(self.directory / uuid4().hex)
        asked = archives.ArchiveOptions((KNOWN["dead-letters"],), int(time.time() * 1000), lake)
        console = Console(out=io.StringIO(), err=io.StringIO())
        [found] = archives.run(self.spark(), asked, console)
        if (found.rows, found.deleted) != (count, count):
            raise AssertionError(found)
        shutil.rmtree(lake)

    def measure_scaling(self) -> None:
        rows, points = self._rows(self.options.rows), []
        for executors in (1, 2, 4):
            self._stop()
            self.spark(f"local-cluster[{executors},1,1024]")
            self._write(rows)  # warm
            name = f"{executors} executors"
            for _ in range(self.options.rounds):
                self._timed(name, self.options.rows, lambda: self._write(rows))
            points.append((executors, statistics.median(self.rates[name])))
        self._stop()
        draw_scaling(points)

    # How

    def _warm_up(self) -> None:
        """Start what Spark starts late: workers, compilers, connections."""
        rows = self._rows(WARM)
        for work in (self._write, self._write_by_key, *([self._jdbc_write] * self._has_jdbc())):
            self._empty()
            work(rows)

    def spark(self, master: str = f"local[{CONNECTIONS},4]") -> Any:
        if self._spark is None:
            conf = {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}
            # On a machine that does much else a worker needs its time to start.
            conf["spark.python.authenticate.socketTimeout"] = "60s"
            if self._has_jdbc():
                conf["spark.jars"] = self.options.jar
            named = {name.replace(".", "__"): value for name, value in conf.items()}
            self._spark = build_session("benchmark", master, **named)
            self._spark.sparkContext.setLogLevel("ERROR")
        return self._spark

    def _stop(self) -> None:
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def _has_jdbc(self) -> bool:
        return Path(self.options.jar).exists()

    def _dsn(self) -> str:
        return os.environ[VARIABLE]

    def _rows(self, count: int) -> str:
        """Write as many rows as Parquet, in the order of no key; return where."""
        path = str(self.directory / f"rows-{count}")
        if not Path(path).exists():
            self.spark().range(0, count, 1, 8).selectExpr(
                "substr(sha2(string(id), 256), 1, 32) AS key",
                "binary(concat('{\"id\":', id, ',\"text\":\"', repeat('x', 90), '\"}')) AS payload",
            ).write.parquet(path)
        return path

    def _write(self, rows: str, **whose: str) -> None:
        offer(self.spark().read.parquet(rows), **(whose or {"kind": KIND}))

    def _write_by_key(self, rows: str) -> None:
        offer(self.spark().read.parquet(rows).repartitionByRange(8, "key"), kind=KIND)

    def _read(self) -> None:
        read = self.spark().read.format("delayed_queue").option("kind", KIND)
        read.option("numPartitions", str(CONNECTIONS)).schema(FULL_ROW).load().write.format(
            "noop"
        ).mode("overwrite").save()

    def _drain(self, *, prefetch: str) -> None:
        lake = str(self.directory / uuid4().hex)
        stream = self.spark().readStream.format("delayed_queue")
        given = {"kind": KIND, "leaseConnections": "4", "maxMessagesPerTrigger": "200000"}
        frame = stream.options(prefetch=prefetch, numPartitions="4", **given).load()
        drain(frame.writeStream.format("parquet").option("path", f"{lake}/rows"), f"{lake}/log")
        shutil.rmtree(lake)

    def _jdbc(self) -> dict[str, str]:
        server = embedded_tcp()
        database = self.connection.info.dbname
        return {
            "url": f"jdbc:postgresql://127.0.0.1:{server['port']}/{database}"
            "?reWriteBatchedInserts=true",
            "user": server["user"],
            "password": server["password"],
            "driver": "org.postgresql.Driver",
            "dbtable": "delayed_queue",
        }

    def _jdbc_write(self, rows: str) -> None:
        now = int(time.time() * 1000)
        frame = self.spark().read.parquet(rows).selectExpr(
            "key AS pKey", f"'{KIND}' AS pKind", "payload", f"{now}L AS scheduledAt",
            f"{now}L AS scheduledAtInitially", f"{now}L AS createdAt",
        )  # fmt: skip
        writer = frame.write.format("jdbc").options(batchsize="10000", **self._jdbc())
        writer.mode("append").save()

    def _jdbc_read(self) -> None:
        first, last = self._ids()
        self.spark().read.format("jdbc").options(
            fetchsize="20000", partitionColumn="id", lowerBound=str(first),
            upperBound=str(last), numPartitions=str(CONNECTIONS), **self._jdbc(),
        ).load().write.format("noop").mode("overwrite").save()  # fmt: skip

    def _ids(self) -> tuple[int, int]:
        found = self.connection.execute("SELECT min(id), max(id) FROM delayed_queue").fetchone()
        return found or (0, 0)

    def _empty(self) -> None:
        self.connection.execute("TRUNCATE delayed_queue, delayed_queue_offer_ledger")
        self.connection.execute("CHECKPOINT")

    def _timed(
        self, name: str, count: int, work: Callable[[], object], *, keep: bool = False
    ) -> None:
        if not keep:
            self._empty()
        self.spark()
        start = time.perf_counter()
        work()
        rate = count / (time.perf_counter() - start)
        self.rates.setdefault(name, []).append(rate)
        say(f"{name}: {rate:,.0f} rows/s")

    def _ratio(self, what: str, ours: str, theirs: str) -> None:
        rounds = zip(self.rates[ours], self.rates[theirs], strict=True)
        self.ratios[what] = statistics.median(one / other for one, other in rounds)

    def tell(self) -> None:
        self._stop()
        for name, rates in self.rates.items():
            print(f"{name:40} {statistics.median(rates):12,.0f} rows/s")  # noqa: T201
        for what, ratio in self.ratios.items():
            verdict = "holds" if ratio >= AIMS[what] else "MISSED"
            print(f"{what:50} {ratio:5.2f} (aim {AIMS[what]}) {verdict}")  # noqa: T201
        if self.options.json:
            figures = {"rates": self.rates, "ratios": self.ratios}
            self.options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


FULL_ROW: Final = (
    "id bigint, key string, kind string, payload binary, scheduled_at timestamp, "
    "scheduled_at_initially timestamp, created_at timestamp, lock_uuid string, attempts int, "
    "headers string, due_at timestamp"
)


def offer(frame: Any, **whose: str) -> None:
    """Offer the rows, and check that each was counted."""
    job = uuid4().hex
    frame.write.format("delayed_queue").options(**whose, job=job).mode("append").save()
    found = counts(job)
    if not found.is_complete:
        raise AssertionError(found)


LETTERS: Final = """
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt"
)
SELECT
    'orders|json', 'key-' || md5(n::text), convert_to(repeat('x', 120), 'UTF8'), 3,
    'attempts exhausted: ValueError', 0, 0, n
FROM generate_series(1, %(count)s) AS n
"""


def busy_since(spark: Any, began: float) -> float:
    """Return for how many seconds at least one job of Spark has run since then."""
    jobs = spark._jsc.sc().statusStore().jobsList(None)  # noqa: SLF001
    spans = []
    for number in range(jobs.size()):
        job = jobs.apply(number)
        times = (job.submissionTime(), job.completionTime())
        spans.append(tuple(each.get().getTime() / 1000 for each in times))
    busy, end = 0.0, began
    for start, stop in sorted(spans):
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy


def embedded_tcp() -> dict[str, Any]:
    """Return port and password of the embedded server, which JDBC can reach by TCP only."""
    from example_project.postgres import EmbeddedPostgres

    return conninfo_to_dict(EmbeddedPostgres().url)


def draw_scaling(points: list[tuple[int, float]]) -> None:
    from benchmarks.plots import draw

    lines = [Line("import", [(float(x), y) for x, y in points])]
    title = "Rows offered per second by executors of one core, one server"
    draw([Plot(title, "executors", "rows/s", lines)], SCALING)
    say(f"{SCALING}, on {os.cpu_count()} cores shared with the server")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    main()
