"""An hour of a busy server in which nobody is to be named: ``python -m benchmarks.snapshot_soak``.

A worker runs under load, and beside it all that a server sees in a day and that keeps no deleted
message for five minutes. Whoever the guard of snapshots names is an error, until the end: then
somebody holds a snapshot, and must be named within 30 seconds of the five minutes.
"""

from __future__ import annotations

import itertools
import re
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.database import benchmark_database
from benchmarks.figures import Report, Table, parser_for, say
from benchmarks.machine import describe
from benchmarks.running import Program, RunningWorker, working
from example_project.postgres import EmbeddedPostgres

ELSEWHERE: Final = "soak_elsewhere"
PARAMETERS: Final[dict[str, str | int]] = {
    "wal_level": "logical", "max_prepared_transactions": 10, "autovacuum_naptime": "5s",
    "shared_buffers": "64MB", "max_wal_size": "512MB",
}  # fmt: skip
LOOK_EVERY: Final = 5.0
# What is named later than so many seconds after it became old was named too late.
IN_TIME: Final = 30.0
TABLES: Final = """
CREATE TABLE report AS SELECT n, repeat('x', 100) AS text FROM generate_series(1, 200000) AS n;
CREATE TABLE batch (n bigint, text text);
"""


@dataclass(frozen=True, slots=True)
class Soak:
    """A server with two databases, until when, and how long a snapshot may be held."""

    ours: str
    elsewhere: str
    stopped: threading.Event
    old: float

    def nap(self, seconds: float) -> None:
        self.stopped.wait(seconds)

    @contextmanager
    def session(self, name: str, **options: Any) -> Iterator[psycopg.Connection[Any]]:
        conninfo = self.elsewhere if options.pop("is_elsewhere", False) else self.ours
        options = {"autocommit": True, "application_name": name, **options}
        with closing(psycopg.connect(conninfo, **options)) as connection:
            yield connection


def short_transactions(soak: Soak) -> None:
    """Twenty a second that write, each gone at once."""
    with soak.session("short") as session:
        while not soak.stopped.is_set():
            session.execute("INSERT INTO batch VALUES (1, 'short')")
            soak.nap(0.05)


def idle_in_transaction(soak: Soak) -> None:
    """Forgotten with a lock and without a snapshot, for the whole time."""
    with soak.session("forgotten", autocommit=False) as session:
        session.execute("SELECT count(*) FROM batch")
        soak.stopped.wait()


def short_idle_in_transaction(soak: Soak) -> None:
    """A snapshot held for four fifths of the time that makes one old, again and again."""
    with soak.session("hesitates") as session:
        while not soak.stopped.is_set():
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            session.execute("SELECT count(*) FROM batch")
            soak.nap(soak.old * 0.8)
            session.execute("COMMIT")
            soak.nap(1)


def analysis(soak: Soak) -> None:
    """One transaction for the whole time: statements of seconds, which each see anew."""
    with soak.session("analysis", autocommit=False) as session:
        for seconds in itertools.cycle((1, 20, 3, 40)):
            if soak.stopped.is_set():
                return
            session.execute("SELECT count(*), pg_sleep(%s) FROM report", [seconds])


def cursor(soak: Soak) -> None:
    """A transaction of two thresholds that reads by cursors, each for a minute."""
    while not soak.stopped.is_set():
        with soak.session("cursor", autocommit=False) as session:
            until = time.monotonic() + 2 * soak.old
            while time.monotonic() < until and not soak.stopped.is_set():
                session.execute("DECLARE rows CURSOR FOR SELECT n FROM report")
                session.execute("FETCH 100 FROM rows")
                soak.nap(min(60, soak.old / 5))
                session.execute("CLOSE rows")


def late_writer(soak: Soak) -> None:
    """Reads for longer than the threshold, then writes, and takes half a minute to commit."""
    with soak.session("late writer", autocommit=False) as session:
        while not soak.stopped.is_set():
            until = time.monotonic() + 1.4 * soak.old
            while time.monotonic() < until and not soak.stopped.is_set():
                session.execute("SELECT count(*) FROM report WHERE n < 1000")
                soak.nap(2)
            session.execute("INSERT INTO batch VALUES (2, 'late')")
            soak.nap(min(30, soak.old / 5))
            session.commit()


def copies(soak: Soak) -> None:
    """Out and in, slowly."""
    with soak.session("copy") as session, session.cursor() as cursor:
        while not soak.stopped.is_set():
            with cursor.copy("COPY report TO STDOUT") as copy:
                for _ in copy:
                    if soak.stopped.is_set():
                        break
            with cursor.copy("COPY batch FROM STDIN") as copy:
                for n in range(60):
                    copy.write_row((n, "copied"))
                    soak.nap(min(1.0, soak.old / 100))
            soak.nap(5)


def prepared(soak: Soak) -> None:
    """Prepared transactions that end after a while, one of ours and one of the other database."""
    with soak.session("prepares") as ours, soak.session("far", is_elsewhere=True) as far:
        for n in itertools.count():
            for session in (ours, far):
                session.execute("BEGIN")
                session.execute("INSERT INTO batch VALUES (3, 'prepared')")
                session.execute(f"PREPARE TRANSACTION 'soak {session.info.dbname} {n}'".encode())
            soak.nap(soak.old * 0.5)
            for session in (ours, far):
                session.execute(f"COMMIT PREPARED 'soak {session.info.dbname} {n}'".encode())
            if soak.stopped.is_set():
                return
            soak.nap(2)


def vacuum(soak: Soak) -> None:
    """By hand and slowly, longer than the threshold."""
    with soak.session("vacuum") as session:
        session.execute("SET vacuum_cost_limit = 1; SET vacuum_cost_delay = '60ms'")
        while not soak.stopped.is_set():
            session.execute("VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) report")


def elsewhere_reads(soak: Soak) -> None:
    """A snapshot of the other database for the whole time: it keeps nothing of ours."""
    with soak.session("far report", is_elsewhere=True) as session:
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM batch")
        soak.stopped.wait()


def elsewhere_writes(soak: Soak) -> None:
    """Transactions of the other database that write and stay open for half the threshold."""
    with soak.session("far batch", is_elsewhere=True, autocommit=False) as session:
        while not soak.stopped.is_set():
            session.execute("INSERT INTO batch VALUES (4, 'far')")
            soak.nap(soak.old * 0.5)
            session.commit()


def elsewhere_slot(soak: Soak) -> None:
    """A slot for logical replication of the other database, which nobody reads."""
    with soak.session("far slot", is_elsewhere=True) as session:
        session.execute("SELECT pg_create_logical_replication_slot('far', 'test_decoding')")
        soak.stopped.wait()
        session.execute("SELECT pg_drop_replication_slot('far')")


NEIGHBOURS: Final[tuple[Callable[[Soak], None], ...]] = (
    short_transactions, idle_in_transaction, short_idle_in_transaction, analysis, cursor,
    late_writer, copies, prepared, vacuum, elsewhere_reads, elsewhere_writes, elsewhere_slot,
)  # fmt: skip


@dataclass(slots=True)
class Seen:
    """What the guard said in the time."""

    looks: int = 0
    longest_look_ms: float = 0.0
    total_look_ms: float = 0.0
    oldest_seconds: float = 0.0
    oldest_by: dict[str, float] = field(default_factory=dict)
    false_names: list[str] = field(default_factory=list)
    false_lines: list[str] = field(default_factory=list)
    failed_neighbours: list[str] = field(default_factory=list)
    named_after: float | None = None
    line_after: float | None = None
    handled: int = 0


def main() -> None:
    """Soak, then have a true holder; fail if anybody was named falsely, or the holder late."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="dq-soak-") as directory:
        Path(directory).chmod(0o755)  # the account of the server comes through
        server = EmbeddedPostgres(directory, PARAMETERS, durable=False)
        server.start()
        try:
            with benchmark_database(server.socket_url) as connection:
                report = Report(describe(connection))
                seen = _soaked(options, server.socket_url, connection)
        finally:
            server.stop()
    _tell(report, seen, options)
    report.write(options)
    if seen.false_names or seen.false_lines or seen.failed_neighbours:
        raise SystemExit("Somebody was named falsely, or a neighbour failed.")
    if max(seen.named_after or 1e9, (seen.line_after or 1e9) - 60) > IN_TIME:
        raise SystemExit("The true holder was named too late.")


def _options() -> Namespace:
    parser = parser_for("snapshot_soak", __doc__)
    parser.add_argument("--minutes", type=float, help="in which nobody is old (60; quick 1)")
    parser.add_argument("--rate", type=float, default=300.0, help="messages per second (300)")
    options = parser.parse_args()
    options.minutes = options.minutes or (1 if options.quick else 60)
    return options


def _soaked(options: Namespace, server: str, connection: psycopg.Connection[Any]) -> Seen:
    from delayed_queue.observe.snapshots import OLD

    connection.execute(f"CREATE DATABASE {ELSEWHERE}".encode())
    ours = make_conninfo(server, dbname=connection.info.dbname)
    elsewhere = make_conninfo(server, dbname=ELSEWHERE)
    soak = Soak(ours, elsewhere, threading.Event(), OLD.total_seconds())
    connection.execute(TABLES.encode())
    with soak.session("far", is_elsewhere=True) as far:
        far.execute(TABLES.encode())
    seen, program = Seen(), Program(ours)
    with working(program) as worker, _producer(options, program, worker):
        with _neighbours(soak, seen):
            _watch(options, soak, seen, worker)
        _hold(soak, seen, worker)
        seen.handled = len(worker.reader.read()[0]) + seen.handled
    return seen


@contextmanager
def _producer(options: Namespace, program: Program, worker: RunningWorker) -> Iterator[None]:
    seconds = options.minutes * 60 + 600
    arguments = (str(options.rate), str(seconds), "4", "soak")
    producer = program.start(worker.stamps, "benchmarks.workerapp.producer", *arguments)
    try:
        yield
    finally:
        producer.kill()
        producer.wait()


@contextmanager
def _neighbours(soak: Soak, seen: Seen) -> Iterator[None]:
    def run(neighbour: Callable[[Soak], None]) -> None:
        try:
            neighbour(soak)
        except psycopg.Error as error:
            if not soak.stopped.is_set():
                seen.failed_neighbours.append(f"{neighbour.__name__}: {error}")

    threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in NEIGHBOURS]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        soak.stopped.set()
        with soak.session("ends") as session:
            # A statement that runs would hold what is measured next.
            session.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = ANY (%s)",
                [["vacuum", "analysis", "copy"]],
            )
        for each in threads:
            each.join(60)


def _watch(options: Namespace, soak: Soak, seen: Seen, worker: RunningWorker) -> None:
    """Look as pages, probes and metrics do; whoever is old is named falsely."""
    from delayed_queue.observe.snapshots import OLD, oldest_snapshot

    until = time.monotonic() + options.minutes * 60
    while time.monotonic() < until:
        began = time.perf_counter()
        found = oldest_snapshot()
        took = (time.perf_counter() - began) * 1000
        seen.looks += 1
        seen.longest_look_ms = max(seen.longest_look_ms, took)
        seen.total_look_ms += took
        if found is not None and found.age is not None:
            name, age = found.application or found.holder, found.age.total_seconds()
            seen.oldest_seconds = max(seen.oldest_seconds, age)
            seen.oldest_by[name] = max(seen.oldest_by.get(name, 0.0), age)
        if found is not None and found.is_older_than(OLD):
            seen.false_names.append(str(found))
            say(f"FALSE: {found}")
        seen.handled += len(worker.reader.read()[0])
        if seen.looks % 60 == 0:
            say(f"{seen.looks} looks, {seen.handled:,} handled, oldest {seen.oldest_seconds:.0f} s")
        time.sleep(LOOK_EVERY)
    seen.false_lines = _lines(worker)


def _lines(worker: RunningWorker) -> list[str]:
    return re.findall(".*event=snapshot_held.*", worker.log.read_text(errors="replace"))


def _hold(soak: Soak, seen: Seen, worker: RunningWorker) -> None:
    """Hold a snapshot; note how long after it became old it was named, and logged."""
    from delayed_queue.observe.snapshots import OLD, oldest_snapshot

    with ExitStack() as stack:
        holder = stack.enter_context(soak.session("holder"))
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM batch")
        old_at = time.monotonic() + soak.old
        before = len(_lines(worker))
        while time.monotonic() < old_at + 120 and None in (seen.named_after, seen.line_after):
            found = oldest_snapshot()
            late = time.monotonic() - old_at
            if seen.named_after is None and found is not None and found.is_older_than(OLD):
                if found.name != str(holder.info.backend_pid):
                    seen.false_names.append(f"at the end: {found}")
                seen.named_after = late
            if seen.line_after is None and len(_lines(worker)) > before:
                seen.line_after = late
            seen.handled += len(worker.reader.read()[0])
            time.sleep(1)


def _tell(report: Report, seen: Seen, options: Namespace) -> None:
    report.data = {"minutes": options.minutes, "rate": options.rate, "seen": asdict(seen)}
    mean = seen.total_look_ms / max(seen.looks, 1)

    def late(seconds: float | None) -> str:
        return "never" if seconds is None else f"{seconds:.0f} s after it was old"

    report.tables.append(
        Table(
            f"{options.minutes:g} minutes beside {len(NEIGHBOURS)} neighbours that hold nothing",
            ("", ""),
            [
                ("messages handled", f"{seen.handled:,}"),
                ("looks", f"{seen.looks:,}"),
                ("a look takes, ms: mean, longest", f"{mean:.1f}, {seen.longest_look_ms:.1f}"),
                ("named falsely by looks", str(len(seen.false_names))),
                ("named falsely in the worker's log", str(len(seen.false_lines))),
                ("the true holder at the end: named", late(seen.named_after)),
                ("the true holder at the end: in the worker's log", late(seen.line_after)),
            ],
        )
    )
    rows = [(name, f"{age:.0f}") for name, age in sorted(seen.oldest_by.items())]
    report.tables.append(Table("Oldest snapshot seen of each", ("", "seconds"), rows))


if __name__ == "__main__":
    main()
