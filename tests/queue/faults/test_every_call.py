"""Every public call loses its connection, and behaves as documented (Q33)."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any, Final

import psycopg
import pytest
from django.db import Error, connection, connections
from pytest_django import Settings

from delayed_queue import DelayedQueue, Groups
from delayed_queue.cron.keeper import CronKeeper
from delayed_queue.cron.service import CronService
from delayed_queue.exceptions import OutcomeUnknown
from delayed_queue.http import rates, tokens
from delayed_queue.http.callbacks import operating
from delayed_queue.http.jobs import adding, batches, catalogue, consuming, dead
from delayed_queue.models import BulkRun, Limit, Message, StoredBatch
from delayed_queue.notifications import intake, managing
from delayed_queue.queue import bulk
from delayed_queue.queue.batches import MessageBatch
from delayed_queue.queue.bulk import BulkPlan
from delayed_queue.queue.groups import GroupService
from delayed_queue.retries import Backoff
from delayed_queue.spark.source import ledger
from delayed_queue.tasks._api import TaskResultStatus
from delayed_queue.tasks.backend import DelayedQueueBackend
from delayed_queue.tasks.models import TaskResult
from tests.queue.faults.calls import CASES, Ready, backend, work
from tests.support.aiming import COMMIT, Stage
from tests.support.losing import losing
from tests.support.processes import ROOT, wait_until
from tests.support.proxy import Proxy
from tests.tasks.conftest import configured

pytestmark = pytest.mark.slow

TABLE: Final = ROOT / "docs" / "internals" / "lost-connections.md"
# Parts of the calls in the table; workers, views and commands use them.
INTERNAL: Final = {
    # They start a thread that repeats the installation.
    "CronService": {
        "install", "install_daily_schedule", "install_periodic_tick", "install_schedule",
        "installer",
    },
    # Envelopes call the others in it, or in batches, which send nothing themselves.
    "DelayedQueue": {"batch", "batch_of", "in_thread", "join_batch"},
    # Batches of tasks call the others.
    "DelayedQueueBackend": {
        "batch_closed", "cancel_message", "check", "open_batch", "task_class", "validate_task",
    },
    "MessageBatch": {"members_of"},
    "bulk": {"step"},
    "adding": {"add_batch", "find_row", "write_jobs"},
    "catalogue": {
        "ensure_hosts", "ensure_topic", "hold_topic", "known_topic", "wake", "why_not_limited",
    },
    "Pop": {"give_back", "kinds", "next_in"},
    "consuming": {"limited_topic"},
    "dead": {"is_topic"},
    "intake": {"body_bytes", "read_json"},
    "managing": {"as_id"},
}  # fmt: skip
CLASSES: Final = (
    DelayedQueue, GroupService, CronService, CronKeeper, DelayedQueueBackend, BulkPlan,
    MessageBatch, consuming.Pop,
)  # fmt: skip
MODULES: Final = (
    tokens, operating, adding, batches, catalogue, consuming, dead, bulk, intake, managing, ledger,
)  # fmt: skip
WITHOUT_ALIAS: Final = (intake, managing)


def public_calls() -> Iterator[str]:
    for owner in CLASSES:
        names = {name for name, _ in inspect.getmembers(owner, callable)}
        for name in names:
            module = getattr(getattr(owner, name), "__module__", None) or ""
            if (
                module.startswith("delayed_queue")
                and name[0] != "_"
                and not (name[0] == "a" and name[1:] in names)
            ):
                yield from _named(owner.__name__, name)
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and name[0] != "_" and _asks(module, name):
                yield from _named(module.__name__.rpartition(".")[2], name)


def _asks(module: ModuleType, name: str) -> bool:
    parameters = inspect.signature(getattr(module, name)).parameters
    return module in WITHOUT_ALIAS or not parameters.keys().isdisjoint({"using", "dsn"})


def _named(owner: str, name: str) -> Iterator[str]:
    if name not in INTERNAL.get(owner, ()):
        yield f"{owner}.{name}"


def rows() -> dict[str, tuple[str, ...]]:
    """Return the documented outcomes of each call: nothing sent, answer lost, server away."""
    found = {}
    for line in TABLE.read_text().splitlines():
        calls, *outcomes = [each.strip() for each in line.strip("|").split("|")]
        for call in re.findall(r"`(\w+\.\w+)`", calls if outcomes else ""):
            found[call] = tuple(outcomes)
    return found


Way = Callable[[Proxy, Callable[[], Any]], Any]
OUTCOMES: Final = {"repeated", "true answer", "`OutcomeUnknown`", "raised"}


def test_the_table_has_every_public_call() -> None:
    assert set(rows()) == set(public_calls())
    assert {call_of(name) for name in CASES} == set(rows())
    assert {outcome for each in rows().values() for outcome in each} <= OUTCOMES


@pytest.fixture
def ready(proxied: None, settings: Settings) -> None:
    """Retries that outlast the test, and tasks."""
    settings.TASKS = configured()
    settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {
        "BACKOFF": Backoff(
            retries=100, initial=timedelta(milliseconds=20), maximum=timedelta(milliseconds=100)
        )
    }
    rates.forget()


def call_of(name: str) -> str:
    return name.partition(",")[0]


def kinds() -> list[str]:
    return sorted({name.partition(".")[0] for name in CASES})


@pytest.mark.parametrize("owner", kinds())
def test_every_call_does_as_the_table_says(ready: None, proxy: Proxy, owner: str) -> None:
    said = rows()
    wrong: list[tuple[str, int, str, Any]] = []
    for number, name in enumerate(each for each in CASES if each.startswith(f"{owner}.")):
        pattern, prepare = CASES[name]
        ways: list[Way] = [cut_before, partial(answer_lost, pattern=pattern), away]
        for place, (way, outcome) in enumerate(zip(ways, said[call_of(name)], strict=True)):
            call = prepare(Ready(f"{owner.lower()}-{number}-{place}"))
            found = outcome_of(partial(way, proxy, call))
            if not is_as_said(found, outcome):
                wrong.append((name, place, outcome, found))
            connections.close_all()
    assert not wrong


def outcome_of(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (OutcomeUnknown, Error) as error:
        return error


def is_as_said(found: Any, outcome: str) -> bool:
    if outcome == "`OutcomeUnknown`":
        return isinstance(found, OutcomeUnknown)
    if outcome == "raised":
        return isinstance(found, Error)
    return not isinstance(found, Exception) and (outcome == "repeated" or bool(found))


def cut_before(proxy: Proxy, call: Callable[[], Any]) -> Any:
    """Nothing is sent: the connection is broken, and the caller has not noticed yet."""
    connection.ensure_connection()
    proxy.cut()
    return call()


def answer_lost(proxy: Proxy, call: Callable[[], Any], pattern: str) -> Any:
    connections.close_all()
    return losing(proxy, call, lambda: None, pattern=pattern)


def away(proxy: Proxy, call: Callable[[], Any]) -> Any:
    """The server closes every connection until a retry has failed."""
    connection.ensure_connection()
    is_over = threading.Event()
    retried_at = proxy.accepted + 2

    def come_back() -> None:
        wait_until(lambda: proxy.accepted >= retried_at or is_over.is_set())
        proxy.accept()

    proxy.hang_up()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(come_back)
        try:
            return call()
        finally:
            is_over.set()
            coming.result()


# Answers after a loss


def test_a_unique_task_whose_answer_is_lost_is_enqueued_once(ready: None, proxy: Proxy) -> None:
    result = answer_lost(proxy, partial(work().once.enqueue, "a"), COMMIT)
    assert Message.objects.count() == 1
    assert backend().get_result(result.id).status == TaskResultStatus.READY
    assert work().once.enqueue("a").id == result.id


def test_a_unique_task_that_ran_before_its_answer_was_lost_is_not_enqueued_again(
    ready: None, proxy: Proxy, other: psycopg.Connection[Any]
) -> None:
    """Its result is stored, so the true outcome is available."""

    def run() -> None:
        other.execute("DELETE FROM delayed_queue")

    result = losing(proxy, partial(work().once.enqueue, "a"), run, pattern=COMMIT)
    assert not Message.objects.exists()
    assert TaskResult.objects.filter(pk=result.id).exists()


def test_a_replacing_task_that_ran_before_its_answer_was_lost_leaves_the_outcome_open(
    ready: None, proxy: Proxy, other: psycopg.Connection[Any]
) -> None:
    work().latest.enqueue("a", 1)

    def run() -> None:
        other.execute("DELETE FROM delayed_queue")

    with pytest.raises(OutcomeUnknown):
        losing(proxy, partial(work().latest.enqueue, "a", 2), run, pattern=COMMIT)
    assert not Message.objects.exists()


@pytest.mark.parametrize("stage", [Stage.EXECUTED, Stage.COMMITTED])
def test_a_bulk_run_whose_answer_is_lost_is_started_once(ready, proxy, stage):
    it = Ready("run")
    it.letter()
    plan = BulkPlan("redrive", it.queue.kind)
    pattern = "INSERT INTO delayed_queue_bulk_run"
    run_id = losing(proxy, plan.start, lambda: None, pattern=pattern, stage=stage)
    assert [each.pk for each in BulkRun.objects.all()] == [run_id]


@pytest.mark.parametrize("stage", [Stage.EXECUTED, Stage.COMMITTED])
@pytest.mark.parametrize("name", ["MessageBatch.joining", "batches.open_batch"])
def test_b9_a_batch_whose_answer_is_lost_is_opened_once(ready, proxy, name, stage):
    pattern, prepare = CASES[name]
    opened = losing(proxy, prepare(Ready("open")), lambda: None, pattern=pattern, stage=stage)
    assert [each.pk for each in StoredBatch.objects.all()] == [getattr(opened, "batch_id", opened)]


def test_a_task_that_was_cancelled_before_the_answer_was_lost_is_said_to_be(ready, proxy):
    task = work().once.enqueue("a")
    cancel = partial(backend().cancel, task.id)
    assert answer_lost(proxy, cancel, "INSERT INTO delayed_queue_task_result") is True
    task.refresh()
    assert task.status == TaskResultStatus.FAILED


def test_a_secret_is_rotated_once(ready: None, proxy: Proxy) -> None:
    endpoint = Ready("rotated").endpoint()
    before = endpoint.secret
    answer_lost(proxy, partial(operating.rotate_secret, endpoint), "UPDATE")
    endpoint.refresh_from_db()
    assert endpoint.previous_secret == before


def test_a_change_of_limits_that_was_made_is_never_said_not_to_be(ready, proxy, settings):
    """The answer is lost, and then the server stays down."""
    settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {
        "BACKOFF": Backoff(retries=2, initial=timedelta(milliseconds=10))
    }
    queue = Ready("limits").queue
    with pytest.raises(OutcomeUnknown):
        losing(proxy, partial(queue.groups.set, Groups()), proxy.hang_up, pattern=COMMIT)
    proxy.accept()
    assert Limit.objects.filter(kind=queue.kind).exists()
