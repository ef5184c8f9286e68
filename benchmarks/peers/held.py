"""The worker and its peers under old snapshots: ``python -m benchmarks.peers.held``.

Each has a database of its own. First each drains a few backlogs; then a snapshot is opened in each
database, and they take turns at draining backlogs until each has worked for so many minutes. Beside
the rates stands what the noise of a machine does not move: the pages that the worker's sessions
touched and the processor time that they and the worker took, for each job; and that of the rest of
the server: autovacuum, the checkpointer, the writers. ``--nobody-holds`` is the same work without
snapshots, to tell what they cost from what so much work costs anyhow.
"""

from __future__ import annotations

import os
import re
import signal
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Final

import psutil
import psycopg

from benchmarks.database import embedded_server
from benchmarks.figures import Line, Plot, Report, Table, parser_for, say
from benchmarks.machine import describe
from benchmarks.peers.arena import Arena, PostgresBacklog
from benchmarks.peers.contenders import ALL
from benchmarks.peers.contenders.base import Contender
from benchmarks.peers.databases import Server
from benchmarks.peers.processes import Workers

NAMES: Final = (
    "ours-defaults", "graphile-best", "pgqueuer-best", "procrastinate-best", "django-ox-best",
)  # fmt: skip
# How long a backlog is to last, and how many are drained before the snapshots.
DRAIN_SECONDS: Final = 4.0
BASES: Final = 4
MOST_JOBS: Final = 100_000
SECONDS: Final = 300.0
# After how long a session that does nothing has told which pages it touched.
TOLD: Final = 11.0
# What a worker may still do when its last job is gone.
REST: Final = 0.2
# How long a worker has to be up once its sessions are there.
UP: Final = 2.0
# Whether jobs are left is looked for during this share of the time.
LOOK_SHARE: Final = 0.2

SESSIONS: Final = """
SELECT pid, (
    SELECT sum(COALESCE(hits, 0) + COALESCE(reads, 0))
    FROM pg_stat_get_backend_io(pid)
    WHERE object = 'relation'
)::bigint
FROM pg_stat_activity
WHERE datname = current_database()
    AND backend_type = 'client backend'
    AND application_name <> 'benchmark'
"""
SIZES: Final = """
SELECT sum(pg_total_relation_size(relid))::bigint, sum(n_dead_tup)::bigint
FROM pg_stat_user_tables
"""


@dataclass(frozen=True, slots=True)
class Drain:
    """A backlog drained: when, how fast, and what a job took."""

    worked_seconds: float
    jobs: int
    rate: float
    client_us: float
    server_us: float
    # Of the rest of the server, whichever contender it worked for.
    rest_us: float
    # On average over the turn.
    pages: float = 0.0

    @property
    def cpu_us(self) -> float:
        return self.client_us + self.server_us


@dataclass(slots=True)
class Course:
    """What one contender did: before its snapshot, and under it."""

    name: str
    versions: dict[str, str]
    base: list[Drain] = field(default_factory=list)
    held: list[Drain] = field(default_factory=list)
    jobs: int = 0
    size_mb: float = 0.0
    dead_rows: int = 0
    failed: str = ""


@dataclass(slots=True)
class Turn:
    """A contender with its running worker, which stands still while others have their turn."""

    contender: Contender
    course: Course
    backlog: PostgresBacklog
    workers: Workers
    looker: psycopg.Connection[Any]
    size: int
    rate: float = 0.0
    worked: float = 0.0

    def drain(self) -> Drain:
        """Offer a backlog while the worker stands still; let it go on, and measure."""
        self.stop()
        recent = self._recent()
        self.backlog.stage.run(self.contender.peer, "bulk", self.size)
        before, client = self.sessions(), self.workers.cpu_seconds()
        rest = self._rest_cpu()
        began = time.perf_counter()
        _signal(self.workers, signal.SIGCONT)
        seconds = self._wait(began, recent) - began
        client = self.workers.cpu_seconds() - client
        time.sleep(REST)
        server, _ = _spent(before, self.sessions())
        rest = self._rest_cpu() - rest - server
        self.worked += seconds
        self.rate = self.size / seconds
        self.course.jobs += self.size
        each = 1e6 / self.size
        return Drain(self.worked, self.size, self.rate, client * each, server * each, rest * each)

    @contextmanager
    def counting_pages(self, drains: list[Drain]) -> Iterator[None]:
        """Add to the drains that are noted meanwhile what a job of theirs touched."""
        first, before = len(drains), self.sessions()
        yield
        self.stop()
        time.sleep(TOLD)
        _, pages = _spent(before, self.sessions())
        each = pages / max(sum(drain.jobs for drain in drains[first:]), 1)
        drains[first:] = [replace(drain, pages=each) for drain in drains[first:]]

    def fit(self) -> None:
        """Have the next backlogs last for so many seconds."""
        self.size = max(200, min(MOST_JOBS, round(self.rate * DRAIN_SECONDS)))

    def stop(self) -> None:
        """Have the worker stand still: at the end of a turn, and while a backlog is offered."""
        _signal(self.workers, signal.SIGSTOP)

    def sessions(self) -> dict[int, tuple[float, int]]:
        rows = self.looker.execute(SESSIONS.encode()).fetchall()
        return {pid: (_cpu(pid), int(pages or 0)) for pid, pages in rows}

    def _rest_cpu(self) -> float:
        """Return the processor time of the server without that of the looks: they read the dead."""
        own = (self.looker.info.backend_pid, self.backlog.connection.info.backend_pid)
        return _server_cpu(self.looker) - sum(map(_cpu, own))

    def _recent(self) -> str:
        """Return whether jobs are left, asked of what is stored from now on alone.

        A look at the whole table reads all that is dead: under a snapshot that took longer than
        the drain. What is stored behind the end of the table is this backlog.
        """
        peer = self.contender.peer
        query = "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::bigint"
        ((pages,),) = self.looker.execute(query, [peer.tables[0]]).fetchall()
        return re.sub(
            rf"FROM {re.escape(peer.tables[0])}\b",
            f"FROM (SELECT * FROM {peer.tables[0]} WHERE ctid >= '({pages},0)') AS recent",  # noqa: S608 - of ours
            peer.unfinished,
            count=1,
        )

    def _wait(self, began: float, recent: str) -> float:
        """Return when nothing was left: first of what is recent, to be sure of all."""
        time.sleep(0.25 * self.size / self.rate if self.rate else 0.0)
        while True:
            looked = time.perf_counter()
            ((is_left,),) = self.looker.execute(recent.encode()).fetchall()
            ended = time.perf_counter()
            if not is_left and not self.backlog.unfinished():
                return ended
            self.workers.check()
            if looked - began > SECONDS:
                raise TimeoutError(f"Jobs were left after {SECONDS:.0f} s.")
            time.sleep(max(0.01, (time.perf_counter() - looked) / LOOK_SHARE))


def _signal(workers: Workers, number: int) -> None:
    """Tell all of its processes: some have a group of their own."""
    for each in workers.started:
        root = psutil.Process(each.pid)
        for process in (root, *root.children(recursive=True)):
            # Some end processes and begin others. Where none works, jobs are left.
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def _cpu(pid: int) -> float:
    try:
        return float(sum(psutil.Process(pid).cpu_times()[:2]))
    except psutil.NoSuchProcess:
        return 0.0


def _server_cpu(looker: psycopg.Connection[Any]) -> float:
    """Return the processor time of all processes of the server, those that have ended too."""
    postmaster = psutil.Process(looker.info.backend_pid).parent()
    assert postmaster is not None  # noqa: S101 - every session has one
    return sum(postmaster.cpu_times()[:4]) + sum(_cpu(each.pid) for each in postmaster.children())


def _spent(
    before: dict[int, tuple[float, int]], after: dict[int, tuple[float, int]]
) -> tuple[float, int]:
    """Return the processor time and the pages of the sessions that are there."""
    gained = [
        (cpu - before.get(pid, (0.0, 0))[0], pages - before.get(pid, (0.0, 0))[1])
        for pid, (cpu, pages) in after.items()
    ]
    return sum(each[0] for each in gained), sum(each[1] for each in gained)


def main() -> None:
    """Measure all by turns, each under a snapshot of its own database, unless nobody is to hold."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
    chosen = [each for each in ALL if each.name in options.only]
    with Server(options.database_url or embedded_server()).all_dropped() as server:
        report, arena = Report(describe(server.connection)), Arena(server)
        with ExitStack() as stack:
            turns = [_begun(arena, each, stack) for each in chosen]
            try:
                _measure(turns, options, stack)
            finally:
                courses = [each.course for each in turns]
                _tell(report, courses, options)
                report.write(options)


def _options() -> Namespace:
    parser = parser_for("peers.held", __doc__)
    parser.add_argument("--minutes", type=float, help="of work for each (10; quick 0.3)")
    parser.add_argument("--within", type=float, default=60.0, help="minutes in all (60)")
    parser.add_argument("--turn", type=float, default=30.0, help="seconds of a turn (30)")
    parser.add_argument("--nobody-holds", action="store_true", help="the work without snapshots")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    options = parser.parse_args()
    options.minutes = options.minutes or (0.3 if options.quick else 10)
    return options


def _begun(arena: Arena, contender: Contender, stack: ExitStack) -> Turn:
    arena.prepare(contender)
    backlog = stack.enter_context(arena.backlog(contender, 0))
    workers = stack.enter_context(backlog.stage.working(contender, 1))
    looker = stack.enter_context(
        psycopg.connect(backlog.database.conninfo, autocommit=True, application_name="benchmark")
    )
    backlog.connection.execute("SET application_name = 'benchmark'")
    course = Course(contender.name, contender.peer.environment.versions())
    turn = Turn(contender, course, backlog, workers, looker, max(200, contender.backlog(1) // 8))
    while not turn.sessions():
        workers.check()
        time.sleep(UP)
    return turn


def _measure(turns: Sequence[Turn], options: Namespace, stack: ExitStack) -> None:
    until = time.monotonic() + options.within * 60
    for turn in turns:
        _take_base(turn)
        turn.worked = 0.0
        if not options.nobody_holds:
            stack.enter_context(_held(turn))
    while time.monotonic() < until and (left := _left(turns, options)):
        for turn in left:
            _take(turn, min(time.monotonic() + options.turn, until), options)
    for turn in turns:
        size, dead = turn.looker.execute(SIZES.encode()).fetchall()[0]
        turn.course.size_mb, turn.course.dead_rows = size / 2**20, dead


def _take_base(turn: Turn) -> None:
    # The first are to know how long backlogs are to be, and warm up.
    for _ in range(3):
        turn.drain()
        turn.fit()
    with turn.counting_pages(turn.course.base):
        for _ in range(BASES):
            _note(turn, turn.course.base)


def _note(turn: Turn, drains: list[Drain]) -> None:
    drains.append(turn.drain())
    turn.fit()
    _say(turn, drains[-1])


def _left(turns: Sequence[Turn], options: Namespace) -> list[Turn]:
    return [each for each in turns if each.worked < options.minutes * 60 and not each.course.failed]


def _take(turn: Turn, until: float, options: Namespace) -> None:
    """Drain backlogs until the turn is over, one at least."""
    with turn.counting_pages(turn.course.held):
        while True:
            try:
                _note(turn, turn.course.held)
            except (TimeoutError, RuntimeError, psycopg.Error) as error:
                turn.course.failed = str(error)[:300]
                say(f"{turn.course.name}: {turn.course.failed}")
                return
            if time.monotonic() >= until or turn.worked >= options.minutes * 60:
                return


@contextmanager
def _held(turn: Turn) -> Iterator[None]:
    """Hold a snapshot of its database, as a report does that somebody has forgotten."""
    conninfo = turn.backlog.database.conninfo
    with psycopg.connect(conninfo, application_name="benchmark") as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        yield


def _say(turn: Turn, found: Drain) -> None:
    say(
        f"{turn.course.name:20} {found.worked_seconds:5.0f} s  {found.jobs:7,} jobs  "
        f"{found.rate:8,.0f}/s  client {found.client_us:7.1f} µs  server {found.server_us:7.1f} µs"
        f"  rest {found.rest_us:6.1f} µs  load {os.getloadavg()[0]:.1f}"
    )


def _tell(report: Report, courses: Sequence[Course], options: Namespace) -> None:
    report.data = {"courses": [asdict(each) for each in courses]}
    report.tables += [_summary(courses, options), *_details(courses), _versions(courses)]
    figures = {"Rate": "rate", "Pages touched for a job": "pages", "CPU of a job, µs": "cpu_us"}
    report.plots = [
        Plot(f"{title}, under a held snapshot", "seconds of work", title, _lines(courses, name),
             is_log_y=True)
        for title, name in figures.items()
    ]  # fmt: skip


def _summary(courses: Sequence[Course], options: Namespace) -> Table:
    table = Table(
        f"Under a held snapshot, up to {options.minutes:g} minutes of work for each",
        ("", "minutes", "jobs", "row versions dead", "MB", "base, jobs/s", "at the end",
         "loss", "pages a job", "at the end", "CPU a job, µs", "at the end", "loss by CPU"),
    )  # fmt: skip
    for each in courses:
        if not each.held or not each.base:
            table.rows.append((f"{each.name} {each.failed}", *[""] * 12))
            continue
        end = _end(each)
        rate, pages, cpu = (
            (_median(each.base, name), _median(end, name)) for name in ("rate", "pages", "cpu_us")
        )
        table.rows.append(
            (f"{each.name}{f' ({each.failed})' if each.failed else ''}",
             f"{each.held[-1].worked_seconds / 60:.1f}", f"{each.jobs:,}", f"{each.dead_rows:,}",
             f"{each.size_mb:,.0f}", f"{rate[0]:,.0f}", f"{rate[1]:,.0f}",
             f"{1 - rate[1] / rate[0]:.1%}", f"{pages[0]:.2f}", f"{pages[1]:.2f}",
             f"{cpu[0]:.1f}", f"{cpu[1]:.1f}", f"{1 - cpu[0] / cpu[1]:.1%}")
        )  # fmt: skip
    return table


def _end(course: Course) -> list[Drain]:
    """Return the drains of the last fifth of the time, three at least."""
    last = course.held[-1].worked_seconds * 0.8
    late = [each for each in course.held if each.worked_seconds >= last]
    return late if len(late) >= 3 else course.held[-3:]


def _median(drains: Sequence[Drain], name: str) -> float:
    return median(getattr(each, name) for each in drains)


def _details(courses: Sequence[Course]) -> Iterator[Table]:
    head = ("seconds of work", "jobs/s", "client, µs", "server, µs", "rest, µs",
            "pages a job")  # fmt: skip
    for each in courses:
        step = max(1, len(each.held) // 12)
        chosen = [*each.base[-1:], *each.held[::step], *each.held[-1:]]
        rows = [
            (f"{d.worked_seconds:.0f}", f"{d.rate:,.0f}", f"{d.client_us:.1f}",
             f"{d.server_us:.1f}", f"{d.rest_us:.1f}", f"{d.pages:.2f}")
            for d in chosen
        ]  # fmt: skip
        yield Table(f"{each.name}: the last before, and under the snapshot", head, rows)


def _versions(courses: Sequence[Course]) -> Table:
    known = ("graphile-worker", "pgqueuer", "procrastinate", "django-ox", "Django", "Python",
             "Node.js", "pg", "asyncpg", "psycopg")  # fmt: skip
    rows = [
        (each.name, ", ".join(f"{k} {v}" for k, v in each.versions.items() if k in known))
        for each in courses
    ]
    return Table("Versions", ("", ""), rows)


def _lines(courses: Sequence[Course], figure: str) -> list[Line]:
    return [
        Line(each.name, [(d.worked_seconds, getattr(d, figure)) for d in each.held])
        for each in courses
    ]


if __name__ == "__main__":
    main()
