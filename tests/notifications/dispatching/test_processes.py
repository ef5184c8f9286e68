"""Dispatchers as processes: several at once, and killed at every point (N3, N5, N10)."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import pytest
from django.db import connection, transaction

from delayed_queue.models import Message
from delayed_queue.notifications.handlers import QUEUES
from delayed_queue.notifications.models import Notification, Status
from tests.notifications.dispatchers import SENT, email_entry, ended, sms_entry, statuses
from tests.notifications.factories import enqueue
from tests.notifications.fakes import FakeSms, FakeSmtp
from tests.support.processes import Process, children_of, wait_until, worker
from tests.support.sampling import sample

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

STAGED: Final = "tests.notifications.staged.StagedProvider"
IN_DOUBT: Final = (Status.FAILED, "in doubt")


@contextmanager
def dispatchers(
    smtp: FakeSmtp, sms: FakeSms, *arguments: str, kind: str = "http"
) -> Iterator[Process]:
    """Run dispatchers under a supervisor, which replaces killed ones."""
    providers = {
        "email": [email_entry(smtp, timeout=20.0)],
        "sms": [sms_entry(sms, kind=kind, timeout=20.0)],
    }
    queues = [part for name in QUEUES for part in ("--queue", name)]
    arguments = (*queues, "--no-cron", "--lease", "30", "--shutdown-timeout", "1", *arguments)
    # Quiet: the log of a failure should not hold thousands of sends.
    variables = {
        "DJANGO_SETTINGS_MODULE": "tests.notifications.settings",
        "NOTIFICATION_PROVIDERS": json.dumps(providers),
        "LOG_LEVEL": "ERROR",
    }
    with worker(*arguments, **variables) as process:
        yield process


def enqueue_many(count: int, texts: list[str]) -> list[str]:
    with transaction.atomic():
        made = [enqueue(channel="sms", recipient="+40721234567", body=text) for text in texts]
    assert len(made) == count
    return [str(each.id) for each in made]


def kill_one(process: Process) -> None:
    os.kill(random.choice(children_of(process)), signal.SIGKILL)


def have_ended(count: int) -> bool:
    return ended() >= count


def is_everything_ended(count: int) -> bool:
    return ended() == count and not Message.objects.exists()


@pytest.mark.parametrize(("count", "processes"), sample([(1_000, 3), (10_000, 8)], (1_000, 3)))
def test_n5_processes_with_batch_seven_send_all_once(smtp, sms, count, processes):
    ids = enqueue_many(count, ["Your code is 7."] * count)
    with dispatchers(smtp, sms, "--processes", str(processes), "--batch-size", "7"):
        wait_until(lambda: is_everything_ended(count), 600)
    assert statuses() == {SENT: count}
    assert sms.accepted == dict.fromkeys(ids, 1)
    assert sms.seen == sms.accepted


def test_n3_a_dispatcher_killed_around_calls_sends_once_or_records_the_doubt(smtp, sms):
    """Before the call, during it, after the provider accepted, and after its reply."""
    texts = [
        enqueue(channel="sms", recipient="+40721234567", body=f"[{stage},1] Your code.")
        for stage in ("before", "hang", "hang-after", "after")
    ]
    without_keys = {
        enqueue(recipient=f"{behaviour}+ada@example.org"): sent
        for behaviour, sent in (("hang", 0), ("hang-after", 1))
    }
    with dispatchers(smtp, sms, "--processes", "1", kind=STAGED) as process:
        wait_until(lambda: (sms.hanging, smtp.hanging) == (4, 2))
        kill_one(process)
        wait_until(lambda: is_everything_ended(6))
    for each in texts:
        each.refresh_from_db()
        assert (each.status, sms.accepted[str(each.id)]) == (SENT, 1)
        outcomes = list(each.deliveries.order_by("id").values_list("outcome", flat=True))
        assert outcomes == ["unfinished", "sent"]
    for each, sent in without_keys.items():
        each.refresh_from_db()
        assert (each.status, each.outcome) == IN_DOUBT
        assert smtp.accepted[str(each.id)] == sent


def is_waiting_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        # A transaction sees one snapshot of the activity until it clears it.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone() == (1,))


@pytest.mark.parametrize(
    "text",
    sample(["Your code.", "[wait] Your code."], "[wait] Your code."),
    ids=["begin", "settle"],
)
def test_n3_a_dispatcher_killed_while_it_begins_or_settles_sends_once(smtp, sms, text):
    """Another transaction locks its notification, so that it waits in the statement."""
    notification = enqueue(channel="sms", recipient="+40721234567", body=text)
    with ExitStack() as stack:
        if text.startswith("["):
            process = stack.enter_context(dispatchers(smtp, sms, "--processes", "1"))
            wait_until(lambda: sms.hanging == 1)
        with transaction.atomic():
            Notification.objects.select_for_update().get()
            if text.startswith("["):
                sms.release()
            else:
                process = stack.enter_context(dispatchers(smtp, sms, "--processes", "1"))
            wait_until(is_waiting_for_a_lock)
            kill_one(process)
            wait_until(lambda: len(children_of(process)) == 1)
        wait_until(lambda: is_everything_ended(1))
    assert statuses() == {SENT: 1}
    assert sms.accepted == {str(notification.id): 1}


FATES: Final[dict[str, tuple[str, int]]] = {
    "": (SENT, 1), "[503,1]": (SENT, 1), "[429,1]": (SENT, 1), "[500,1]": (SENT, 1),
    "[drop,1]": (SENT, 1), "[drop-after,1]": (SENT, 1), "[400]": (Status.FAILED, 0),
    "[blocked]": (Status.FAILED, 0),
}  # fmt: skip


@pytest.mark.parametrize("count", sample([300, 1500], 300))
def test_n10_under_failing_providers_and_kills_nothing_is_lost_and_nothing_sent_twice(
    smtp: FakeSmtp, sms: FakeSms, count: int
):
    sms.latency = 0.05
    texts = random.choices(list(FATES), [8, 1, 1, 1, 1, 1, 1, 1], k=count)
    ids = enqueue_many(count, texts)
    with dispatchers(smtp, sms, "--processes", "2") as process:
        for part in (0.1, 0.3, 0.6):
            wait_until(partial(have_ended, int(part * count)))
            kill_one(process)
        wait_until(lambda: is_everything_ended(count), 300)

    found: dict[Any, str] = dict(Notification.objects.values_list("id", "status"))
    ends = {str(id_): (status, sms.accepted[str(id_)]) for id_, status in found.items()}
    assert ends == {id_: FATES[text] for id_, text in zip(ids, texts, strict=True)}
