"""J5, J3: a job stays one, in every order of the callers' statements.

Each caller is a connection that gets one statement at a time; a caller blocked by a lock continues
once the lock is free. Daily runs try a part of the orders, and ``make test-all`` tries each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from typing import Any, Final

import psycopg
import pytest

from delayed_queue.http.jobs.kinds import kinds_of_topic
from delayed_queue.http.store.adding import PUT_JOBS
from delayed_queue.http.store.finding import DROP_DEAD_JOB, DROP_JOB
from delayed_queue.http.store.topics import LOCK_JOBS, LOCK_JOBS_OF_LETTERS, LOCK_TOPICS_OF_LETTERS
from delayed_queue.queue.store.claim import CONSUME, RESTORE
from delayed_queue.queue.store.dead_letters import REDRIVE, family_params
from delayed_queue.queue.store.settle import DEAD_LETTER, RELEASE
from tests.support.concurrency import raw_connection
from tests.support.processes import wait_until
from tests.support.sampling import sample

Connection = psycopg.Connection[Any]
# A step that returns True makes its caller start again, after all others.
Step = Callable[[Connection], Any]

PULLED, CALLED = kinds_of_topic("orders", 1)
NOW: Final = 1_000
FAR: Final = 2**60
LETTERS: Final = "SELECT array_agg(id) FROM delayed_queue_dead_letter"
LIVING: Final = 'SELECT "pKey", "pKind" FROM delayed_queue ORDER BY 1, 2'


def run(statement: str, **params: Any) -> Step:
    def step(connection: Connection) -> None:
        connection.execute(statement, params)

    return step


commit = run("COMMIT")


def lock(connection: Connection) -> None:
    connection.execute("BEGIN")
    connection.execute(LOCK_JOBS, {"topic": "orders", "keys": ["a", "x"]})


def put(connection: Connection) -> bool:
    """Update jobs x and a with another body and a url."""
    rows = connection.execute(
        PUT_JOBS,
        {
            "topic": "orders", "shards": 1, "hosts": "", "places": [PULLED, CALLED],
            "keys": ["x", "a"], "kind": CALLED, "kinds": None, "payloads": [b"2"] * 2,
            "schedules": [FAR] * 2, "delay": 0, "delays": None, "headers": None, "groups": None,
            "expiries": None, "lives": None,
            "now": NOW,
        },
    ).fetchall()  # fmt: skip
    return any(key is not None and due_at is None for _, key, _, due_at, _ in rows)


def drop(connection: Connection) -> bool:
    found, dropped, _ = connection.execute(DROP_JOB, {"topic": "orders", "key": "a"}).fetchall()[0]
    return bool(found > dropped)


UPDATE: Final[Sequence[Step]] = (lock, put, commit)
DELETION: Final[Sequence[Step]] = (
    lock, drop, run(DROP_DEAD_JOB, topic="orders", key="a"), commit
)  # fmt: skip
# By the caller that leased it.
DEATH: Final[Sequence[Step]] = (
    run(DEAD_LETTER, ids=[-1], lease_id="leased", reason="no", error=None, fingerprint="", now=NOW),
)


def redrive(*, careless: bool = False) -> Sequence[Step]:
    """Redrive the dead letters present at the start, with or without the locks of their jobs."""
    params: dict[str, Any] = {"kind": None, "overwrite": False, "now": NOW, "most": 200}
    params |= family_params()

    def begin(connection: Connection) -> None:
        params["ids"] = connection.execute(LETTERS).fetchall()[0][0] or []
        connection.execute("BEGIN")
        if not careless:
            connection.execute(LOCK_TOPICS_OF_LETTERS, params)
            connection.execute(LOCK_JOBS_OF_LETTERS, params)

    return begin, lambda connection: connection.execute(REDRIVE, params), commit


def failure() -> Sequence[Step]:
    """Consume job a, fail, and return it, due at once."""
    taken: list[Any] = []

    def consume(connection: Connection) -> None:
        connection.execute("BEGIN")
        params = {"kind": PULLED, "limit": 1, "floor": -FAR, "floor_id": 0, "now": NOW}
        taken.extend(connection.execute(CONSUME, params).fetchall())

    def restore(connection: Connection) -> None:
        for row in taken:
            ended = {"ids": [row[0]], "lease_id": "mine", "refund": 0, "error": None, "now": NOW}
            kept = {
                "id": row[0], "key": row[1], "kind": PULLED, "payload": row[2], "due_at": 0,
                "scheduled_at": 0, "lease_id": "mine", "created_at": 0, "attempts": 1,
                "headers": None, "group": None, "expires_at": None, "first_error": None,
                "batch_id": None, "last_error": None,
            }  # fmt: skip
            connection.execute(RESTORE, kept)
            connection.execute(RELEASE, ended | {"delay": -1})
        taken.clear()

    return consume, restore, commit


class Caller:
    """One connection, and its steps."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[bool] | None = None
        self.steps: list[Step] = []
        self.begins_again = False

    def begin(self, steps: Sequence[Step]) -> None:
        self.steps, self.begins_again = list(steps), False

    @property
    def is_ready(self) -> bool:
        return self._last is None or self._last.done()

    def advance(self) -> None:
        self._last = self._thread.submit(self.run, self.steps.pop(0))

    def run(self, step: Step) -> bool:
        self.begins_again |= step(self.connection) is True
        return True

    def is_settled(self, admin: Connection) -> bool:
        """True if its last step has finished, or waits for a lock."""
        if self.is_ready:
            return self._last is None or self._last.result()
        pid = self.connection.info.backend_pid
        row = admin.execute("SELECT cardinality(pg_blocking_pids(%s))", [pid]).fetchone()
        return row is not None and row[0] > 0

    def close(self) -> None:
        if not self.is_ready:
            self.connection.cancel_safe()
        self._thread.shutdown()


@pytest.fixture
def callers(transactional_db: None) -> Iterator[list[Caller]]:
    with ExitStack() as stack:
        some = [Caller(stack.enter_context(raw_connection())) for _ in range(4)]
        for each in some:
            stack.callback(each.close)
        yield some


def orders(counts: Sequence[int], every: int) -> Iterator[list[int]]:
    """Yield merges of sequences of those lengths, as the numbers of the sequences."""
    return islice(all_orders(counts), 0, None, every)


def all_orders(counts: Sequence[int]) -> Iterator[list[int]]:
    if not any(counts):
        yield []
    for number, count in enumerate(counts):
        if count:
            rest = [each - (place == number) for place, each in enumerate(counts)]
            yield from ([number, *order] for order in all_orders(rest))


def scene(admin: Connection, *, is_leased: bool) -> None:
    """Jobs x and a of a topic, to be popped: x is delayed, a is leased or due."""
    admin.execute("DELETE FROM delayed_queue_dead_letter")
    admin.execute("DELETE FROM delayed_queue")
    admin.execute(
        """INSERT INTO delayed_queue_topic (name, shards, "createdAt")
        VALUES ('orders', 1, 0) ON CONFLICT DO NOTHING"""
    )
    lease_id, due_at = ("leased", FAR) if is_leased else (None, 0)
    admin.execute(
        """INSERT INTO delayed_queue (id, "pKey", "pKind", payload, "scheduledAt",
            "scheduledAtInitially", "createdAt", "lockUuid")
        VALUES (-2, 'x', %(kind)s, '1', %(far)s, 0, 0, NULL),
            (-1, 'a', %(kind)s, '1', %(due_at)s, 0, 0, %(lease_id)s)""",
        {"kind": PULLED, "far": FAR, "due_at": due_at, "lease_id": lease_id},
    )


def play(
    admin: Connection,
    callers: Sequence[Caller],
    all_steps: Sequence[Sequence[Step]],
    order: list[int],
) -> int:
    """Take the steps in that order; return the maximum of jobs named a."""
    cast = callers[: len(all_steps)]
    for caller, steps in zip(cast, all_steps, strict=True):
        caller.begin(steps)
    left, most = list(order), 1
    while left:
        wait_until(lambda: all(each.is_settled(admin) for each in cast))
        number = next(each for each in left if cast[each].is_ready)
        left.remove(number)
        cast[number].advance()
        wait_until(lambda: all(each.is_settled(admin) for each in cast))
        most = max(most, jobs_a(admin))
    wait_until(lambda: all(each.is_ready for each in cast))
    for caller, steps in zip(cast, all_steps, strict=True):
        while caller.begins_again:
            caller.begins_again = False
            for step in steps:
                assert caller.is_settled(admin)
                caller.run(step)
    return max(most, jobs_a(admin))


def jobs_a(admin: Connection) -> int:
    return [row[0] for row in admin.execute(LIVING).fetchall()].count("a")


def holding_x(caller: Caller) -> Sequence[Step]:
    """Lock job x, for which an update then waits in the middle of its statement."""
    caller.connection.execute("BEGIN")
    caller.connection.execute("SELECT FROM delayed_queue WHERE id = -2 FOR UPDATE")
    return (commit,)


@pytest.mark.parametrize("every", sample([17, 1], 17))
def test_j5_an_update_a_death_and_a_redrive_leave_one_job(
    callers: list[Caller], admin: Connection, every: int
) -> None:
    for order in orders([3, 1, 3, 1], every):
        scene(admin, is_leased=True)
        steps = [UPDATE, DEATH, redrive(), holding_x(callers[3])]
        assert play(admin, callers, steps, order) == 1, order
        assert admin.execute(LIVING).fetchall() == [("a", CALLED), ("x", CALLED)], order


def test_j5_without_the_locks_of_its_letters_a_redrive_leaves_two(
    callers: list[Caller], admin: Connection
) -> None:
    """The orders tried above are therefore enough to find the fault."""
    most = 1
    for order in orders([3, 1, 3, 1], 17):
        scene(admin, is_leased=True)
        steps = [UPDATE, DEATH, redrive(careless=True), holding_x(callers[3])]
        most = max(most, play(admin, callers, steps, order))
        if most > 1:
            break
    assert most == 2


@pytest.mark.parametrize("every", sample([41, 1], 41))
def test_j5_an_update_and_two_failures_of_consumers_leave_one_job(
    callers: list[Caller], admin: Connection, every: int
) -> None:
    for order in orders([3, 3, 3], every):
        scene(admin, is_leased=False)
        assert play(admin, callers, [UPDATE, failure(), failure()], order) == 1, order
        assert admin.execute(LIVING).fetchall() == [("a", CALLED), ("x", CALLED)], order


@pytest.mark.parametrize("every", sample([7, 1], 7))
def test_j3_a_deletion_a_death_and_a_redrive_leave_none(
    callers: list[Caller], admin: Connection, every: int
) -> None:
    for order in orders([4, 1, 3], every):
        scene(admin, is_leased=True)
        assert play(admin, callers, [DELETION, DEATH, redrive()], order) == 1, order
        assert admin.execute(LIVING).fetchall() == [("x", PULLED)], order
        assert admin.execute(LETTERS).fetchall() == [(None,)], order


@pytest.mark.parametrize("every", sample([101, 1], 101))
def test_j3_a_deletion_and_two_failures_of_consumers_leave_none(
    callers: list[Caller], admin: Connection, every: int
) -> None:
    for order in orders([4, 3, 3], every):
        scene(admin, is_leased=False)
        play(admin, callers, [DELETION, failure(), failure()], order)
        assert admin.execute(LIVING).fetchall() == [("x", PULLED)], order
