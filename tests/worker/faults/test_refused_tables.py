"""A read-only table does not affect messages of other queues (W19)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Final, NamedTuple

import pytest
from pytest_django import Settings

from delayed_queue import DelayedQueue, Envelope, Groups, PeriodicSchedule, Reject, RetryPolicy
from delayed_queue.handlers import Handler, Registry, Source
from delayed_queue.handlers import registry as all_handlers
from delayed_queue.http.callbacks.delivery import handlers_of_topics
from delayed_queue.http.jobs.kinds import WAKE_CHANNEL
from delayed_queue.http.models import Endpoint
from delayed_queue.models import DeadLetter, Message
from delayed_queue.notifications.handlers import QUEUES, dispatcher_of
from delayed_queue.tasks.priorities import kind_of_priority
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.http.callbacks.delivering import add_many, permitted, send_due
from tests.http.callbacks.servers import Receiver, answering
from tests.notifications.factories import enqueue
from tests.support.operations import PAST
from tests.support.processes import wait_until
from tests.support.refusing import FAULTS, refusing
from tests.support.running import SOON, handler_of, running
from tests.support.sampling import sample
from tests.tasks.conftest import configured

pytestmark = [pytest.mark.django_db(transaction=True)]

LATER: Final = RetryPolicy.ladder("1h 1h")
OTHERS: Final = 20


class Case(NamedTuple):
    """A table, the work that writes it, and the log events of the refusal."""

    table: str
    begin: Callable[[Settings, ExitStack], Iterable[Handler | Source]]
    events: tuple[str, ...]
    when: str = "true"


def plain(settings: Settings, stack: ExitStack) -> Iterator[Handler]:
    yield from ()


def rejected(settings: Settings, stack: ExitStack) -> Iterator[Handler]:
    def reject(envelope: Envelope) -> None:
        raise Reject("by a test")

    DelayedQueue("rejected").offer_or_update("a", None, PAST)
    yield handler_of("rejected", reject, retry=LATER)


def limited(settings: Settings, stack: ExitStack) -> Iterator[Handler]:
    queue = DelayedQueue("limited")
    queue.groups.declare(Groups(rate="100/s"))
    queue.offer_or_update("a", None, PAST, group="g")
    yield handler_of("limited", print, retry=LATER, groups=Groups(rate="100/s"))


def tasks(settings: Settings, stack: ExitStack) -> Iterator[Handler]:
    from tests.tasks import work

    settings.TASKS = configured()
    for each in range(3):
        work.add.enqueue(each)
    yield all_handlers.get("default")


def callbacks(settings: Settings, stack: ExitStack, **keys: Any) -> Iterator[Source]:
    receiver = stack.enter_context(Receiver())
    receiver.behaviour = answering(500 if keys else 200)
    stack.enter_context(permitted(receiver, **keys))
    add_many("called", 3, receiver.url)
    yield Source("callbacks", handlers_of_topics, WAKE_CHANNEL)


def limited_callbacks(settings: Settings, stack: ExitStack) -> Iterator[Source]:
    (source,) = callbacks(settings, stack)
    send_due()
    Endpoint.objects.update(concurrency=2, per_second=100)
    add_many("called", 3, Endpoint.objects.get().prefix)
    yield source


def failing_callbacks(settings: Settings, stack: ExitStack) -> Iterator[Source]:
    return callbacks(settings, stack, BREAKER_FAILURES=1)


def notifications(settings: Settings, stack: ExitStack) -> Iterator[Handler]:
    enqueue()
    for name in QUEUES:
        yield dispatcher_of(name, retry=LATER)


def ticks(settings: Settings, stack: ExitStack) -> Iterator[Handler]:
    settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {
        "CRON": [
            {
                "queue": "ticked",
                "key_prefix": "t",
                "schedule": PeriodicSchedule(timedelta(1)),
                "payload": 1,
            }
        ]
    }
    yield handler_of("ticked", print)


WORKED: Final = ("write_refused", "failed", "callback_not_noted", "attempts_not_logged")
CRON: Final = ("install_failed", "cron_failed")
CASES: Final = {
    "ticks": Case("delayed_queue", ticks, CRON, """NEW."pKind" = 'ticked|json'"""),
    "dead letters": Case("delayed_queue_dead_letter", rejected, ("write_refused",)),
    "schedules": Case("delayed_queue_schedule", ticks, CRON),
    "workers": Case("delayed_queue_worker", plain, ("heartbeat_failed",)),
    "limits": Case("delayed_queue_limit", limited, ("claim_refused",), """NEW."group" = 'g'"""),
    "declared limits": Case("delayed_queue_limit", limited, ("claim_refused",)),
    "task results": Case("delayed_queue_task_result", tasks, ("write_refused",)),
    "attempts": Case("delayed_queue_callback_attempt", callbacks, ("attempts_not_logged",)),
    "hosts": Case("delayed_queue_host", failing_callbacks, ("callback_not_noted",)),
    "endpoints": Case("delayed_queue_endpoint", callbacks, WORKED),
    "slots": Case("delayed_queue_slot", limited_callbacks, WORKED),
    "rates": Case("delayed_queue_rate", limited_callbacks, WORKED),
    "notifications": Case("delayed_queue_notification", notifications, WORKED),
    "deliveries": Case("delayed_queue_notification_delivery", notifications, WORKED),
}


# A missing right of the first claim ends the worker: see test_refusals.py.
CLAIMS: Final = ("limits", "declared limits")
EACH: Final = [
    (name, state) for name in CASES for state in FAULTS if name not in CLAIMS or state != "42501"
]


# One refusal of each table in daily runs.
EVERYDAY: Final = {name: (name, state) for name, state in EACH}


@pytest.mark.parametrize(("name", "state"), sample(EACH, *EVERYDAY.values()))
def test_the_worker_goes_on(name, state, settings, caplog):
    case, handled = CASES[name], Counter[str]()
    queue = DelayedQueue("others")

    def is_reported() -> bool:
        return any(f"event={each}" in caplog.text for each in case.events)

    def offer(prefix: str) -> None:
        for each in range(OTHERS):
            queue.offer_or_update(f"{prefix}{each}", None, PAST)

    def handle(envelope: Envelope) -> None:
        handled[envelope.key] += 1
        assert envelope.attempt == 1

    with ExitStack() as stack:
        found = [*case.begin(settings, stack), handler_of("others", handle, retry=LATER)]
        registry = Registry()
        for each in found:
            if isinstance(each, Source):
                registry.add_source(each)
            else:
                registry.add(each)
        worker = Worker(WorkerOptions(poll_interval=SOON, cron=True), registry)
        offer("before")
        with refusing("INSERT OR UPDATE", case.when, case.table, state), running(worker):
            wait_until(is_reported)
            offer("after")
            wait_until(lambda: len(handled) == 2 * OTHERS)
            wait_until(lambda: not Message.objects.filter(kind="others|json").exists())
    assert set(handled.values()) == {1}
    assert not DeadLetter.objects.exists()


def test_what_a_refused_claim_has_leased_before_is_released(settings, caplog):
    """Each priority is claimed in its own transaction; only that of the limited one is refused."""
    from tests.tasks import work

    settings.TASKS = configured()
    queue = DelayedQueue("default", kind=kind_of_priority("default", 0))
    queue.groups.set(Groups(rate="100/s"))
    add: Any = work.add
    add.using(priority=9).enqueue(1)
    add.using(group="a").enqueue(1)
    with refusing("INSERT OR UPDATE", "true", "delayed_queue_limit"):
        registry = Registry()
        registry.add(all_handlers.get("default"))
        with running(Worker(WorkerOptions(poll_interval=SOON), registry)):
            wait_until(lambda: "event=claim_refused" in caplog.text)
            wait_until(lambda: not Message.objects.exclude(lease_id=None).exists())
            assert Message.objects.count() == 2
