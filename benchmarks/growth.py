"""What a worker's claim costs as the table grows: ``python -m benchmarks.growth``."""

from __future__ import annotations

import time
import uuid
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.backlogs import (
    ANALYZED,
    JSON_KIND,
    NEVER_ANALYZED,
    Backlog,
    vacuum,
)
from benchmarks.database import benchmark_database, embedded_server
from benchmarks.figures import Line, Plot, Report, Table, parser_for, percentile, say
from benchmarks.machine import describe
from benchmarks.running import Program, working

if TYPE_CHECKING:
    from delayed_queue.worker.consumers import Consumer

SIZES: Final = (10_000, 100_000, 1_000_000, 10_000_000)
BATCH: Final = 500
# Of each round; together they take less than the smallest backlog has.
EXCHANGES: Final = {1: 300, BATCH: 15}
ROUNDS: Final = 3
HANDLED: Final = 100_000
WARM: Final = 10_000
TOLERANCE: Final = 0.2


@dataclass(slots=True)
class Case:
    """Milliseconds of exchanges by batch size, and the pages that one claim of 500 reads."""

    backlog: Backlog
    state: str
    pages: int = 0
    exchanges: dict[int, list[float]] = field(default_factory=lambda: {1: [], BATCH: []})

    def median(self, batch: int) -> float:
        return percentile(self.exchanges[batch], 50)


@dataclass(slots=True)
class Memory:
    """Resident megabytes of the worker process by messages handled."""

    backlog: Backlog
    samples: list[tuple[int, float]] = field(default_factory=list)

    @property
    def warm(self) -> float:
        return next(size for handled, size in self.samples if handled >= WARM)

    @property
    def last(self) -> float:
        return self.samples[-1][1]


def main() -> None:
    """Measure claims on growing backlogs, then the memory of a worker."""
    options = _options()
    server = options.database_url or embedded_server()
    with benchmark_database(server) as connection:
        report = Report(describe(connection))
        cases = [case for each in _backlogs(options) for case in _measured(connection, each)]
        program = Program(make_conninfo(server, dbname=connection.info.dbname))
        backlogs = [Backlog(HANDLED), Backlog(HANDLED, options.sizes[-1])]
        memories = [_memory(connection, program, each) for each in backlogs]
    _tell(report, cases, memories)
    report.write(options)


def _options() -> Namespace:
    parser = parser_for("growth", __doc__)
    parser.add_argument("--sizes", nargs="+", type=int, metavar="MESSAGES")
    options = parser.parse_args()
    options.sizes = options.sizes or (SIZES[:2] if options.quick else SIZES)
    return options


def _backlogs(options: Namespace) -> Iterator[Backlog]:
    yield from map(Backlog, options.sizes)
    yield Backlog(options.sizes[-1], is_shuffled=True)
    yield Backlog(options.sizes[0], options.sizes[-1])


def _measured(connection: psycopg.Connection[Any], backlog: Backlog) -> Iterator[Case]:
    """Yield the case of a table that was never analyzed, and of the same one vacuumed."""
    backlog.write(connection)
    yield _case(connection, Case(backlog, NEVER_ANALYZED), rounds=1)
    yield _case(connection, Case(backlog, ANALYZED), rounds=ROUNDS)


def _case(connection: psycopg.Connection[Any], case: Case, rounds: int) -> Case:
    for number in range(rounds):
        if case.state == ANALYZED:
            _refill(connection, case.backlog, f"{number}-")
        with _Exchanges() as exchanges:
            case.pages = exchanges.pages_of_a_claim()
            for batch, count in EXCHANGES.items():
                case.exchanges[batch] += exchanges.measure(batch, count)
    middles = "  ".join(f"{batch}: {case.median(batch):6.2f} ms" for batch in EXCHANGES)
    say(f"{case.backlog!s:>40}, {case.state:16} {middles}  {case.pages} pages")
    return case


def _refill(connection: psycopg.Connection[Any], backlog: Backlog, prefix: str) -> None:
    """Replace what a round took, of the same spread, and vacuum."""
    taken = sum(batch * (count + 1) for batch, count in EXCHANGES.items())
    backlog.add_due(connection, taken, prefix)
    vacuum(connection)


class _Exchanges:
    """The round trips of a worker, on a connection set up as a worker's is."""

    def __enter__(self) -> _Exchanges:
        from delayed_queue.db.own import using_own_connection

        # A new connection: the plans of the last one were for another table.
        self._own = using_own_connection("default")
        self._own.__enter__()
        self._consumer = _consumer()
        self._leases: list[str] = []
        return self

    def __exit__(self, *exc_info: object) -> None:
        from delayed_queue.db.statements import run
        from delayed_queue.queue.store.settle import acknowledging_leases

        run("default", [acknowledging_leases(self._leases)])
        self._own.__exit__(None, None, None)

    def measure(self, batch: int, count: int) -> list[float]:
        self._exchange(batch)  # the first one plans, and acknowledges another size
        return [self._exchange(batch) for _ in range(count)]

    def _exchange(self, batch: int) -> float:
        """Acknowledge what was claimed last and claim the next; return the milliseconds."""
        from delayed_queue.db.sql import rows_of
        from delayed_queue.db.statements import run
        from delayed_queue.queue.store.claim import LeasedRow, earliest_first
        from delayed_queue.queue.store.settle import acknowledging_leases
        from delayed_queue.worker.consumers import PollResult

        poll = self._consumer.schedule.begin(batch)
        lease_id = str(uuid.uuid4())
        steps = [acknowledging_leases(self._leases)] if self._leases else []
        steps += self._consumer.claim_steps(poll, lease_id, str(uuid.uuid4())).values()
        started_at = time.perf_counter()
        answers = run("default", steps)
        rows = earliest_first(rows_of(LeasedRow, answers[-1]))
        spent = time.perf_counter() - started_at
        if len(rows) != batch:
            raise RuntimeError(f"{len(rows)} messages were claimed, not {batch}.")
        self._consumer.end_poll(poll, PollResult(len(rows), rows[-1].due_at))
        self._leases = [lease_id]
        return spent * 1000

    def pages_of_a_claim(self) -> int:
        """Return how many pages a claim of 500 reads and finds, the writes' included.

        Of the second one: VACUUM leaves a few dead entries in indexes, which the first marks.
        """
        from django.db import connections, transaction

        from delayed_queue.queue.store.claim import claiming

        connections["default"].ensure_connection()
        statement, parameters = claiming(JSON_KIND, BATCH, "explained", "again", 60_000)
        cursor = psycopg.Cursor(connections["default"].connection)
        for _ in range(2):
            with transaction.atomic():
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
                row = cursor.fetchone()
                transaction.set_rollback(True)
        plan = row[0][0]["Plan"] if row else {}
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _consumer() -> Consumer:
    from delayed_queue import DelayedQueue
    from delayed_queue.codecs import codec_named
    from delayed_queue.handlers import Handler
    from delayed_queue.worker.consumers import Consumer

    queue = DelayedQueue("benchmark")
    handler = Handler("benchmark", lambda envelope: None, codec_named("json"), JSON_KIND)
    call = handler.function
    return Consumer(handler, queue, queue.retry_policy, call, BATCH, call)


def _memory(connection: psycopg.Connection[Any], program: Program, backlog: Backlog) -> Memory:
    backlog.write(connection)
    vacuum(connection)
    memory = Memory(backlog)
    handled = 0
    with working(program) as worker:

        def is_done() -> bool:
            nonlocal handled
            handled += len(worker.reader.read()[0])
            memory.samples.append((handled, worker.rss() / 2**20))
            time.sleep(0.1)
            return handled >= HANDLED

        worker.wait_for(is_done)
    say(f"{backlog!s:>40}: {memory.warm:.1f} MB, then {memory.last:.1f} MB")
    return memory


HEADER: Final = (
    "backlog", "statistics", "claim of 500: pages", f"exchange of {BATCH}, ms: p50", "p90",
    "against the smallest", "exchange of 1, ms: p50", "p90", "against the smallest",
)  # fmt: skip


def _tell(report: Report, cases: Sequence[Case], memories: Sequence[Memory]) -> None:
    smallest = {case.state: case for case in cases[:2]}
    claims = Table("A worker's exchange: acknowledge the last claim, claim the next", HEADER)
    claims.rows += [_cells(each, smallest[each.state]) for each in cases]
    rss = Table(
        f"Resident memory of a worker process over {HANDLED:,} messages",
        ("backlog", f"after {WARM:,}, MB", f"after {HANDLED:,}, MB", "most, MB"),
    )
    rss.rows += [
        (str(each.backlog), f"{each.warm:.1f}", f"{each.last:.1f}",
         f"{max(size for _, size in each.samples):.1f}")
        for each in memories
    ]  # fmt: skip
    report.tables += [claims, rss]
    report.data = {
        "cases": [asdict(each) for each in cases],
        "memory": [asdict(each) for each in memories],
    }
    report.plots = [_growth(cases), _resident(memories)]


def _cells(case: Case, smallest: Case) -> list[str]:
    cells = [str(case.backlog), case.state, str(case.pages)]
    for batch in (BATCH, 1):
        ratio = case.median(batch) / smallest.median(batch)
        mark = "" if ratio <= 1 + TOLERANCE else " (aim: ≤ 1.20)"
        late = percentile(case.exchanges[batch], 90)
        cells += [f"{case.median(batch):.2f}", f"{late:.2f}", f"{ratio:.2f}{mark}"]
    return cells


def _growth(cases: Sequence[Case]) -> Plot:
    def line(state: str, batch: int) -> Line:
        chosen = [each for each in cases if each.state == state]
        points = [
            (float(each.backlog.due), each.median(batch))
            for each in chosen
            if each.backlog == Backlog(each.backlog.due)
        ]
        return Line(f"{batch} at a time, {state}", points)

    lines = [line(state, batch) for batch in (BATCH, 1) for state in (ANALYZED, NEVER_ANALYZED)]
    title = "Acknowledge and claim, median"
    return Plot(title, "messages that are due", "ms", lines, is_log_x=True, is_log_y=True)


def _resident(memories: Sequence[Memory]) -> Plot:
    lines = [
        Line(str(each.backlog), [(float(handled), size) for handled, size in each.samples])
        for each in memories
    ]
    return Plot("Resident memory of the worker process", "messages handled", "MB", lines)


if __name__ == "__main__":
    main()
