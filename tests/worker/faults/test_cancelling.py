"""Cancelling across processes: the holder of the message is notified on every host (O13)."""

from __future__ import annotations

import os
import signal

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import Message
from tests.support.processes import wait_until, worker
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

ARGUMENTS = ("--queue", "heeding", "--queue", "asking", "--processes", "0", "--lease", "3600")


def pid_of(key: str) -> int | None:
    return Effect.objects.filter(key=key).values_list("pid", flat=True).first()


def test_the_process_that_holds_it_is_told_and_no_other_also_when_one_was_killed() -> None:
    heeding, asking = DelayedQueue("heeding"), DelayedQueue("asking")
    with worker(*ARGUMENTS), worker(*ARGUMENTS):
        for queue in (heeding, asking):
            queue.offer_or_update(f"{queue.name} 1", 1)
            queue.offer_or_update(f"{queue.name} 2", 1)
        wait_until(lambda: Effect.objects.count() == 4)

        assert heeding.drop_message("heeding 1")
        wait_until(lambda: pid_of("heeding 1 cancelled"), 5)
        asking.offer_or_update("asking 1", 2)  # and any free process handles the new one
        wait_until(lambda: pid_of("asking 1 cancelled"), 5)
        assert Effect.objects.filter(key__endswith="cancelled").count() == 2
        assert pid_of("heeding 1") == pid_of("heeding 1 cancelled")

        victim = pid_of("heeding 2")
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        assert heeding.drop_message("heeding 2")  # no process is left to notify
        heeding.offer_or_update("heeding 3", 1)
        wait_until(lambda: pid_of("heeding 3") not in (None, victim))
        assert heeding.drop_message("heeding 3")
        wait_until(lambda: pid_of("heeding 3 cancelled"), 5)
        assert not Message.objects.filter(kind=heeding.kind).exists()
