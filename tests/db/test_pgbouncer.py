"""Workers behind a pooler in transaction mode: nothing is left in a session, nothing is lost."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pytest
from django.db import connections, transaction
from psycopg.conninfo import conninfo_to_dict
from pytest_django import Settings

from delayed_queue import CronEntry, DelayedQueue, Envelope, Reject, RetryPolicy, ScheduledMessage
from delayed_queue.http.jobs.adding import add_job, delete_job
from delayed_queue.http.jobs.catalogue import forget_topics
from delayed_queue.http.jobs.jobs import IfExists
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import Message
from tests.support.concurrency import together
from tests.support.pooler import find_program, pooler, version_of
from tests.support.processes import database_url, wait_until
from tests.support.proxies import proxied
from tests.support.proxy import Proxy
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)

# As in docs/guides/deploying.md.
POOLED: Final = {"NOTIFY": False}
BURST: Final = 2_000
# Statements whose effect outlives their transaction, in a session that another client gets next.
KEPT: Final = re.compile(
    r"(?:^|;)\s*(LISTEN|UNLISTEN|SET(?!\s+(LOCAL|CONSTRAINTS)\b)|PREPARE|DEALLOCATE|DECLARE|DISCARD"
    r"|CREATE\s+TEMP|LOAD)\b"
    r"|pg_(try_)?advisory_(un)?lock(_shared)?\s*\("
    r"|set_config\([^()]*\bfalse\s*\)",
    re.IGNORECASE,
)
# Django's own on each new connection: PgBouncer restores it by itself.
TIME_ZONE: Final = re.compile(r"set_config\('TimeZone'", re.IGNORECASE)


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    forget_topics()
    yield
    forget_topics()


@contextmanager
def through(url: str) -> Iterator[None]:
    """Route all further connections of Django through a pooler."""
    found = connections["default"].settings_dict
    kept, parts = dict(found), conninfo_to_dict(url)
    connections["default"].close()
    found |= {
        "HOST": parts["host"],
        "PORT": parts["port"],
        "DISABLE_SERVER_SIDE_CURSORS": True,
        "OPTIONS": {
            **found.get("OPTIONS", {}), "sslmode": "disable", "gssencmode": "disable",
        },
    }  # fmt: skip
    try:
        yield
    finally:
        connections["default"].close()
        found.clear()
        found |= kept


@pytest.fixture
def recorded(settings: Settings) -> Iterator[Proxy]:
    """A proxy that records the statements of the session."""
    settings.DELAYED_QUEUE = POOLED
    with proxied() as proxy, through(proxy.url):
        yield proxy


@pytest.fixture
def pooled(settings: Settings) -> Iterator[None]:
    """PgBouncer in transaction mode; a direct connection if the program is missing."""
    settings.DELAYED_QUEUE = POOLED
    with ExitStack() as stack:
        if find_program():
            url = stack.enter_context(pooler(database_url()))
        else:
            url = stack.enter_context(proxied()).url
        stack.enter_context(through(url))
        yield


def test_w9_a_worker_leaves_nothing_in_a_session(recorded: Proxy, settings: Settings):
    """For claims, lease renewals, failures, transactions, heartbeats and schedules."""
    settings.DELAYED_QUEUE = {**POOLED, "CRON": [CronEntry("kept", "report", "0 0 1 1 *")]}
    renewed = threading.Event()

    def fail(envelope: Envelope) -> None:
        raise ValueError("asked to fail") if envelope.payload else Reject("asked to reject")

    async def succeed(envelope: Envelope) -> None:
        """Do nothing."""

    def outlast(envelope: Envelope) -> None:
        before = Message.objects.get(key="lasts").scheduled_at
        wait_until(lambda: Message.objects.get(key="lasts").scheduled_at > before)
        renewed.set()

    policy = RetryPolicy.ladder("10ms")
    worker = worker_with(
        handler_of("kept", lambda envelope: None),
        handler_of("failing", fail, retry=policy),
        handler_of("awaited", succeed),
        handler_of("exact", lambda envelope: None, transactional=True),
        handler_of("lasting", outlast, lease=timedelta(milliseconds=600)),
        cron=True,
    )
    for name in ("kept", "failing", "awaited", "exact"):
        DelayedQueue(name).offer_batch(ScheduledMessage(f"k{n}", n) for n in range(3))
    DelayedQueue("lasting").offer_or_update("lasts", 1)
    with running(worker):
        wait_until(lambda: worker.counts.done == 10 and worker.counts.dead == 3)
    assert renewed.is_set()
    assert _executed(recorded, "attempts = CASE")
    assert [each for each in recorded.statements if _is_kept(*each)] == []


def test_w9_what_a_worker_keeps_in_a_session_by_default_is_seen(recorded: Proxy, settings: Any):
    """The test above would detect it: a direct connection listens and prepares."""
    connections["default"].settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = False
    settings.DELAYED_QUEUE = {}
    DelayedQueue("kept").offer_or_update("k", 1)
    worker = worker_with(handler_of("kept", lambda envelope: None))
    with running(worker):
        wait_until(lambda: worker.counts.done == 1)
    kept = [each for each in recorded.statements if _is_kept(*each)]
    assert any(text.startswith("LISTEN") for _, text in kept)
    assert any(name and "attempts = CASE" in text for name, text in kept)


def test_w9_a_burst_through_a_pooler_is_handled_once_each(pooled: None):
    handled: Counter[str] = Counter()
    workers = [
        worker_with(handler_of("burst", lambda each: handled.update([each.key])), worker_id=name)
        for name in ("one", "two")
    ]
    queue = DelayedQueue("burst")
    with running(workers[0]), running(workers[1]):
        for first in range(0, BURST, 500):
            queue.offer_batch(ScheduledMessage(f"k{first + n}", n) for n in range(500))
        wait_until(lambda: sum(each.counts.done for each in workers) == BURST)
    assert len(handled) == BURST
    assert set(handled.values()) == {1}
    assert not Message.objects.exists()


def test_adding_jobs_leaves_nothing_in_a_session(recorded: Proxy):
    """The settings that keep a plan end with the transaction."""
    for if_exists in IfExists:
        add(f"{if_exists}", if_exists)
        assert delete_job("orders", f"{if_exists}")
    assert _executed(recorded, "plan_cache_mode")
    assert [each for each in recorded.statements if _is_kept(*each)] == []


@pytest.mark.parametrize("prepare", [None, True])
def test_jobs_are_added_through_a_pooler_and_its_sessions_stay_as_they_were(
    pooled: None, settings: Settings, prepare: bool | None
):
    if prepare and find_program() and version_of() < (1, 22):
        prepare = None  # the documented setting for older versions, see guides/deploying.md
    settings.DELAYED_QUEUE = {**POOLED, "PREPARE": prepare}

    def some(number: int) -> list[str | None]:
        return [add(f"{number}-{n}", IfExists.FAIL) for n in range(25)]

    outcomes = [each for found in together([partial(some, n) for n in range(8)]) for each in found]
    assert outcomes == ["created"] * 200
    assert Message.objects.count() == 200
    for found in together([settings_of_a_session] * 8):
        assert found == {"enable_seqscan": "on", "lock_timeout": "0", "plan_cache_mode": "auto"}


def settings_of_a_session() -> dict[str, str]:
    found = {}
    with transaction.atomic(), connections["default"].cursor() as cursor:
        for name in ("enable_seqscan", "lock_timeout", "plan_cache_mode"):
            cursor.execute(f"SHOW {name}")
            found[name] = cursor.fetchone()[0]
    return found


def add(job_id: str, if_exists: IfExists) -> str | None:
    job = job_from({"jobId": job_id, "topic": "orders", "delay": 60})
    return add_job(job, if_exists=if_exists).outcome


def _is_kept(name: str, text: str) -> bool:
    return bool(name) or (bool(KEPT.search(text)) and not TIME_ZONE.search(text))


def _executed(proxy: Proxy, text: str) -> bool:
    return any(text in statement for _, statement in proxy.statements)
