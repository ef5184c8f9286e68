"""Workers killed around a callback, with its receiver as witness (J3, J9)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection

from delayed_queue.http.jobs.adding import delete_job
from delayed_queue.http.models import Host
from delayed_queue.models import Message
from tests.http.callbacks.delivering import TOPIC, add, add_many, make_due
from tests.http.callbacks.servers import Receiver, answering, silent
from tests.support.aiming import CLAIM, Stage
from tests.support.processes import Process, children_of, wait_until, worker
from tests.support.programs import kill, suspended, wait_while_tending, working
from tests.support.sampling import sample

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as opened:
        yield opened


@contextmanager
def sending(receiver: Receiver, *arguments: str) -> Iterator[Process]:
    """Run a supervised worker of callbacks."""
    with worker(
        "--callbacks-only", "--no-cron", "--no-reload", *arguments,
        DJANGO_SETTINGS_MODULE="tests.http.callbacks.settings", RECEIVERS=str(receiver.port),
    ) as process:  # fmt: skip
        yield process


def kill_child(supervisor: Process) -> None:
    for pid in children_of(supervisor):
        os.kill(pid, signal.SIGKILL)


def kill_and_replace_child(supervisor: Process) -> None:
    """Kill the process of the worker, and return once the supervisor has started another."""
    (killed,) = children_of(supervisor)
    kill_child(supervisor)
    wait_until(lambda: set(children_of(supervisor)) - {killed})


def is_sent() -> bool:
    return not Message.objects.exists()


def is_sent_when_due() -> bool:
    Host.objects.update(open_until=None)
    make_due()
    return is_sent()


def is_waited_for(holder: psycopg.Connection[Any]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))",
            [holder.info.backend_pid],
        )
        return cursor.fetchone() is not None


def sent(receiver: Receiver) -> tuple[int, int]:
    """Return the number of requests since the last call, and of their ids."""
    found = [each.headers["webhook-id"] for each in receiver.requests]
    receiver.requests.clear()
    return len(found), len(set(found))


class TestKills:
    def test_j9_a_worker_is_killed_around_each_moment_of_a_callback(self, receiver, other):
        """The supervisor starts another each time; a repeated callback has the same id."""
        with sending(receiver) as process:
            self._before_the_dial_it_is_sent_once(process, receiver, other)
            self._during_the_request_it_is_sent_again(process, receiver)
            self._before_the_answer_is_written_it_is_sent_again(process, receiver, other)
            self._after_it_is_written_it_is_not_sent_again(process, receiver)

    def _before_the_dial_it_is_sent_once(
        self, process: Process, receiver: Receiver, other: psycopg.Connection[Any]
    ) -> None:
        origin = receiver.url.removesuffix("/hook")
        other.execute("BEGIN")
        # Every transaction that needs the endpoint of this origin now waits for this one.
        other.execute(
            'INSERT INTO delayed_queue_endpoint (origin, prefix, secret, "createdAt") '
            "VALUES (%s, %s, 'x', 0)",
            [origin, origin],
        )
        add("a", receiver.url)
        wait_until(lambda: Message.objects.filter(lease_id__isnull=False).exists())
        assert not receiver.requests
        kill_child(process)
        other.execute("ROLLBACK")
        wait_until(is_sent)
        assert sent(receiver) == (1, 1)

    def _during_the_request_it_is_sent_again(self, process: Process, receiver: Receiver) -> None:
        receiver.behaviour = silent
        add("b", receiver.url)
        receiver.wait_for_requests(1)
        receiver.behaviour = answering()
        kill_child(process)
        wait_until(is_sent)
        assert sent(receiver) == (2, 1)

    def _before_the_answer_is_written_it_is_sent_again(
        self, process: Process, receiver: Receiver, other: psycopg.Connection[Any]
    ) -> None:
        """No living process has the outcome: the message is locked while the receiver answers."""
        held, answered = threading.Event(), threading.Event()

        async def behave(wire: Any, request: Any) -> None:
            if not held.is_set():
                other.execute("BEGIN")
                other.execute("SELECT 1 FROM delayed_queue FOR UPDATE")
                held.set()
            await wire.answer(200)
            answered.set()

        receiver.behaviour = behave
        add("c", receiver.url)
        assert answered.wait(30)
        # It waits for the row, gives up, and will retry: no callback is on its way.
        wait_until(lambda: is_waited_for(other))
        wait_until(lambda: not is_waited_for(other))
        kill_child(process)
        other.execute("ROLLBACK")
        wait_until(is_sent)
        assert sent(receiver) == (2, 1)

    def _after_it_is_written_it_is_not_sent_again(
        self, process: Process, receiver: Receiver
    ) -> None:
        receiver.behaviour = answering()
        add("d", receiver.url)
        wait_until(is_sent)
        kill_and_replace_child(process)
        add("e", receiver.url)
        wait_until(is_sent)
        assert sent(receiver) == (2, 2)

    def test_j9_killed_again_and_again_nothing_is_lost(self, receiver: Receiver) -> None:
        """Repeats only callbacks that were on the wire: at most a hundred, each time."""
        for n in range(200):
            add(f"k{n}", f"{receiver.url}/k{n}")
        with sending(receiver) as process:
            for so_many in (30, 100):
                wait_until(lambda: len(receiver.requests) >= so_many or is_sent())  # noqa: B023
                kill_and_replace_child(process)
            wait_until(is_sent, 180)
        times = Counter(each.path for each in receiver.requests)
        assert set(times) == {f"/hook/k{n}" for n in range(200)}
        assert sum(times.values()) <= 400
        by_path = defaultdict(set)
        for each in receiver.requests:
            by_path[each.path].add(each.headers["webhook-id"])
        assert {len(found) for found in by_path.values()} == {1}


class TestRests:
    @pytest.mark.parametrize("stage", sample(Stage, Stage.EXECUTED))
    @pytest.mark.parametrize("end", sample(["killed", "cut off"], "killed"))
    def test_j12_while_the_shard_of_a_host_rests_nothing_is_lost(self, receiver, proxy, stage, end):
        """Callbacks that were not on the wire then are delivered once."""
        receiver.behaviour = answering(500)
        add_many("k", 5000, receiver.url)
        aim = proxy.aim_at(CLAIM, stage, nth=12)
        with Receiver() as healthy:
            add_many("good", 300, healthy.url)
            with working(
                "--callbacks-only", "--no-reload", url=proxy.url,
                RECEIVERS=f"{receiver.port} {healthy.port}", BREAKER_FAILURES="5",
                DJANGO_SETTINGS_MODULE="tests.http.callbacks.settings",
            ) as program:  # fmt: skip
                aim.wait()
                if end == "killed":
                    kill(suspended(program, aim))
                else:
                    proxy.cut_aimed()
                dialled = {each.path for each in receiver.requests}
                assert len(dialled) < 200
                receiver.behaviour = answering()
                wait_while_tending(program, is_sent_when_due)
            times = Counter(each.path for each in healthy.requests)
        assert set(times) == {f"/hook/good{n}" for n in range(300)}
        # Callbacks since the last commit are sent again, once.
        assert max(times.values()) <= 2
        times = Counter(each.path for each in receiver.requests)
        assert set(times) == {f"/hook/k{n}" for n in range(5000)}
        assert {path for path, count in times.items() if count > 1} <= dialled


class TestDeletes:
    @pytest.mark.parametrize(("count", "workers"), sample([(300, 2), (1000, 4)], (300, 2)))
    def test_j3_jobs_deleted_under_workers(self, receiver, count, workers):
        """Sent before the 204, or on the wire at that time, or never; and never again."""
        seen: defaultdict[str, list[float]] = defaultdict(list)

        async def behave(wire: Any, request: Any) -> None:
            seen[request.path].append(time.monotonic())
            await wire.answer(404)  # a failure of the job, which does not pause the host

        receiver.behaviour = behave
        for n in range(count):
            add(f"k{n}", f"{receiver.url}/k{n}", ladder=" ".join(["50ms"] * 50))
        deleted_at = {}
        with ExitStack() as stack:
            for _ in range(workers):
                stack.enter_context(sending(receiver))
            wait_until(lambda: len(receiver.requests) >= 50)
            for n in range(count):
                assert delete_job(TOPIC, f"k{n}")
                deleted_at[f"/hook/k{n}"] = time.monotonic()
            assert not Message.objects.exists()
            # Long enough for forbidden retries: a job that repeats many times.
            add("last", f"{receiver.url}/last", ladder=" ".join(["50ms"] * 50))
            wait_until(lambda: len(seen["/hook/last"]) > 10)
        late = {
            path: [at for at in times if at > deleted_at[path]]
            for path, times in seen.items()
            if path in deleted_at
        }
        assert max(map(len, late.values())) <= 1
        assert all(at - deleted_at[path] < 10 for path, times in late.items() for at in times)
