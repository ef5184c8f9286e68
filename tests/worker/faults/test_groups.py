"""Limits of groups while workers are killed (G2, G3), with a referee in the database."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psutil
import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import DeadLetter, Message
from tests.chaos import groups
from tests.support.processes import wait_until
from tests.support.programs import ROUNDS, Program, working
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
GROUPS = 20
EACH = 25


@pytest.fixture
def referee() -> Iterator[None]:
    groups.install()
    yield
    groups.remove()


def offer(queue: DelayedQueue) -> set[str]:
    messages = [
        ScheduledMessage(f"{queue.name}-{group}-{number}", None, group=f"group-{group}")
        for number in range(EACH)
        for group in range(GROUPS)
    ]
    queue.offer_batch(messages)
    return {each.key for each in messages}


def kill_one(programs: list[Program], source: random.Random) -> None:
    """Kill a process below one of the workers, or all of it; its supervisor replaces it."""
    tree = source.choice(programs).tree()
    if tree:
        with suppress(psutil.NoSuchProcess):
            source.choice(tree).kill()


@pytest.mark.parametrize("seed", ROUNDS)
def test_g2_g3_no_limit_is_exceeded_while_processes_are_killed(referee: None, seed: int):
    queues = DelayedQueue("limited"), DelayedQueue("ordered")
    expected = set[str]().union(*map(offer, queues))
    arguments = ("--queue", "limited", "--queue", "ordered", "--lease", "1", "--concurrency", "4",
                 "--processes", "2")  # fmt: skip
    source, pause = random.Random(seed), threading.Event()
    with ExitStack() as stack:
        programs = [stack.enter_context(working(*arguments)) for _ in range(3)]
        left_at_last_kill = len(expected)

        def is_drained() -> bool:
            """Kill one now and then, after the worker has handled a message since the last kill.

            Otherwise all would die before they have started, on a busy machine.
            """
            nonlocal left_at_last_kill
            for program in programs:
                program.tend()
            left = Message.objects.count()
            if left < left_at_last_kill and source.random() < 0.3:
                kill_one(programs, source)
                left_at_last_kill = left
            pause.wait(0.05)
            return left == 0

        wait_until(is_drained, 150)
    limited = groups.judge("limited|json", 2)
    ordered = groups.judge("ordered|json", 1, is_ordered=True)
    assert (limited.violations, ordered.violations) == ([], [])
    assert limited.leases >= GROUPS * EACH
    assert (limited.most, ordered.most) == (2, 1)
    handled = set(Effect.objects.values_list("key", flat=True))
    given_up = set(DeadLetter.objects.values_list("key", flat=True))
    assert handled | given_up == expected
