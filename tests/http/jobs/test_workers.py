"""J3, J7: topics whose jobs Django workers handle."""

from __future__ import annotations

import threading

import pytest

from delayed_queue import Envelope
from delayed_queue.models import Message
from tests.http.jobs.support import add
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)


def test_j7_a_topic_with_a_slow_handler_holds_up_no_other() -> None:
    is_slow, go_on = threading.Event(), threading.Event()
    quick: list[str] = []

    def slow(envelope: Envelope) -> None:
        is_slow.set()
        assert go_on.wait(20)

    handlers = [
        handler_of("slow", slow, batch_size=1),
        handler_of("quick", lambda envelope: quick.append(envelope.key)),
    ]
    add("s", "slow")
    with running(worker_with(*handlers, concurrency=2)):
        assert is_slow.wait(20)
        for n in range(50):
            add(str(n), "quick")
        wait_until(lambda: len(quick) == 50)
        assert not go_on.is_set()
        go_on.set()
        wait_until(lambda: not Message.objects.exists())
