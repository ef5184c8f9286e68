"""Jobs that several threads add at the same time: in one transaction, and each for itself (J5)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import psycopg
import pytest
from django.db import transaction

from delayed_queue.http.jobs import adding
from delayed_queue.http.jobs.adding import add_job_in_group
from delayed_queue.http.jobs.catalogue import configure_topic, create_topic, forget_topics
from delayed_queue.http.jobs.jobs import AddedJob, IfExists, job_from
from delayed_queue.http.store.topics import LOCK_JOBS
from delayed_queue.models import Message
from tests.http.jobs.support import found
from tests.http.races.jobs import hold_job
from tests.support.concurrency import Call, calling, together, wait_until_blocked
from tests.support.processes import wait_until

Connection = psycopg.Connection[Any]
LONG: Final = 60_000


@pytest.fixture(autouse=True)
def new_process(transactional_db: None) -> Iterator[None]:
    forget_topics()
    create_topic("orders")
    yield
    forget_topics()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread writes at a time, and who waits in a group waits for as long as it takes."""
    monkeypatch.setattr(adding, "TIMEOUT", LONG)
    monkeypatch.setattr(adding.gathered, "callers", 1)


def add(job_id: str, if_exists: str = "fail", **fields: Any) -> AddedJob:
    job = job_from({"jobId": job_id, "topic": "orders", **fields})
    return add_job_in_group(job, if_exists=IfExists(if_exists))


def place(if_exists: str) -> adding.Place:
    return "default", "orders", IfExists(if_exists)


def waiting(if_exists: str) -> int:
    return adding.gathered.waiting(place(if_exists))


def transactions(admin: Connection) -> Counter[str]:
    """How many jobs each transaction has stored."""
    return Counter(row[0] for row in admin.execute("SELECT xmin::text FROM delayed_queue"))


def gathered(
    stack: ExitStack, calls: Sequence[Callable[[], AddedJob]], if_exists: str = "fail"
) -> list[Call[AddedJob]]:
    """Start the calls behind one that writes; return when all stand in line."""
    started = [stack.enter_context(calling(call)) for call in calls]
    wait_until(lambda: waiting(if_exists) == len(calls))
    return started


@pytest.mark.parametrize("if_exists", IfExists)
def test_what_gathers_while_one_writes_is_written_in_one_transaction(
    patient: None, other: Connection, admin: Connection, if_exists: IfExists
) -> None:
    hold_job(other, "first")
    with ExitStack() as stack:
        first = stack.enter_context(calling(partial(add, "first", if_exists)))
        wait_until_blocked(admin, first)
        calls = [partial(add, f"k{n}", if_exists, body=n) for n in range(5)]
        rest = gathered(stack, calls, if_exists)
        other.execute("COMMIT")
        assert [each.answer().outcome for each in (first, *rest)] == ["created"] * 6
        assert [each.answer().job_id for each in rest] == [f"k{n}" for n in range(5)]
    assert sorted(transactions(admin).values()) == [1, 5]


def test_of_a_group_one_gets_an_id_and_the_others_their_own_answers(
    patient: None, other: Connection, admin: Connection
) -> None:
    """A statement returns a row for one of two equal ids; the second has a turn of its own."""
    add("taken")
    hold_job(other, "first")
    with ExitStack() as stack:
        first = stack.enter_context(calling(partial(add, "first")))
        wait_until_blocked(admin, first)
        rest = gathered(stack, [partial(add, each) for each in ("a", "taken", "b", "a", "a")])
        other.execute("COMMIT")
        outcomes = [each.answer().outcome for each in rest]
    assert outcomes[1] is None
    assert outcomes[2] == "created"
    assert sorted(str(outcomes[n]) for n in (0, 3, 4)) == ["None", "None", "created"]


def test_an_id_that_is_held_holds_up_nobody_else(other: Connection, admin: Connection) -> None:
    """Not the one of its batch, and not those who come after it."""
    hold_job(other, "held")
    with calling(partial(add, "held")) as held:
        wait_until_blocked(admin, held)
        outcomes = together([partial(add, f"k{n}") for n in range(8)])
        assert {each.outcome for each in outcomes} == {"created"}
        wait_until_blocked(admin, held)
        assert add("later").outcome == "created"
        other.execute("COMMIT")
        assert held.answer().outcome == "created"


def test_when_the_writer_fails_each_writes_for_itself(
    patient: None, other: Connection, admin: Connection
) -> None:
    """Its session is ended under it: the connection of a thread is its own matter."""
    hold_job(other, "first")
    with ExitStack() as stack:
        first = stack.enter_context(calling(partial(add, "first")))
        wait_until_blocked(admin, first)
        second = stack.enter_context(calling(partial(add, "second")))
        wait_until(lambda: waiting("fail") == 1)
        hold_job_also(other, "second")
        admin.execute("SELECT pg_terminate_backend(%s)", [first.pid])
        wait_until_blocked(admin, second)
        rest = gathered(stack, [partial(add, f"k{n}") for n in range(3)])
        admin.execute("SELECT pg_terminate_backend(%s)", [second.pid])
        assert [each.answer().outcome for each in rest] == ["created"] * 3
        other.execute("COMMIT")
        assert [each.answer().outcome for each in (first, second)] == ["created"] * 2
    assert Message.objects.count() == 5


def hold_job_also(connection: Connection, job_id: str) -> None:
    """Hold one more in the same transaction."""
    connection.execute(LOCK_JOBS, {"topic": "orders", "keys": [job_id]})


def test_a_topic_that_changed_its_shards_is_noticed(
    patient: None, other: Connection, admin: Connection
) -> None:
    add("known")
    hold_job(other, "first")
    with ExitStack() as stack:
        first = stack.enter_context(calling(partial(add, "first")))
        wait_until_blocked(admin, first)
        rest = gathered(stack, [partial(add, f"k{n}") for n in range(5)])
        admin.execute("UPDATE delayed_queue_topic SET shards = 3")
        other.execute("COMMIT")
        assert {each.answer().outcome for each in (first, *rest)} == {"created"}
    assert configure_topic("orders").shards == 3
    assert all(found(f"k{n}") for n in range(5))
    assert len({each.kind for each in Message.objects.filter(key__startswith="k")}) > 1


def test_in_a_transaction_of_the_callers_it_belongs_to_that() -> None:
    with transaction.atomic():
        assert add("a").outcome == "created"
        transaction.set_rollback(True)
    assert not Message.objects.exists()


def test_many_threads_add_many_jobs_and_none_is_lost_or_doubled() -> None:
    def some(number: int) -> list[AddedJob]:
        # Every third id is wanted by all.
        return [add(f"{n}" if n % 3 == 0 else f"{number}-{n}") for n in range(30)]

    answers = [each for found in together([partial(some, n) for n in range(6)]) for each in found]
    created = Counter(each.job_id for each in answers if each.outcome == "created")
    assert set(created.values()) == {1}
    assert len(created) == Message.objects.count() == 10 + 6 * 20
    assert adding.gathered.is_idle()


def test_a_child_that_was_forked_while_others_wait_writes_at_once(
    patient: None, other: Connection, admin: Connection
) -> None:
    hold_job(other, "first")
    with ExitStack() as stack:
        first = stack.enter_context(calling(partial(add, "first")))
        wait_until_blocked(admin, first)
        child = os.fork()
        if child == 0:
            os._exit(0 if adding.gathered.is_idle() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        other.execute("COMMIT")
        assert first.answer().outcome == "created"
