"""Targets and handlers that the pipeline's tests name by their path."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from datetime import timedelta
from pathlib import Path

from django.db import connections

from delayed_queue import Envelope, Reject, RetryPolicy, Snooze, handler
from delayed_queue.models import Message
from tests.spark.programs.draining import executor, only_once
from tests.spark.support import wait_in_task


def answering(envelope: Envelope) -> None:
    """End with the outcome in the payload."""
    answer(envelope.payload)


def answer(word: str) -> None:
    answers = {
        "snooze": Snooze(timedelta(hours=1)),
        "reject": Reject("no such order"),
        "fail": ValueError("broken"),
    }
    if word in answers:
        raise answers[word]


_MEETING = threading.Barrier(3)


def meeting(envelope: Envelope) -> None:
    """Return once two others run, too."""
    _MEETING.wait(30)


class AtWork:
    """The number of running calls, and its maximum."""

    now = most = 0


AT_WORK = AtWork()


async def counted_later(envelope: Envelope) -> None:
    AT_WORK.now += 1
    AT_WORK.most = max(AT_WORK.most, AT_WORK.now)
    for _ in range(10):  # the others' turn
        await asyncio.sleep(0)
    AT_WORK.now -= 1


LEFT: list[int] = []


def noting_what_is_left(envelope: Envelope) -> None:
    """Record the number of messages if it differs from the call before."""
    left = Message.objects.count()
    if LEFT[-1:] != [left]:
        LEFT.append(left)


def asking(envelope: Envelope) -> None:
    """Query the database through Django, in a session identified by its name."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SET application_name = 'of a handler'")


def perishing(envelope: Envelope) -> None:
    """Record the call and reply; the first message with "kill" kills its executor."""
    word, directory = envelope.payload
    with (Path(directory) / "calls").open("a", encoding="utf-8") as calls:
        calls.write(f"{envelope.key} {envelope.attempt}\n")
    if word == "kill" and only_once(Path(directory)):
        os.kill(executor(), signal.SIGKILL)
        wait_in_task(lambda: False)  # this worker dies with it
    answer(word)


def deadly(envelope: Envelope) -> None:
    """Kill the process if the payload is "die"."""
    if envelope.payload == "die":
        os._exit(1)


async def answering_later(envelope: Envelope) -> None:
    answering(envelope)


@handler("strict-orders", retry=RetryPolicy.never())
def strict(envelope: Envelope) -> None:
    answering(envelope)


def settling(envelope: Envelope) -> None:
    """Settle the message itself: none is left to acknowledge."""
    before = envelope.leased_until
    assert envelope.extend()
    assert envelope.leased_until >= before
    assert envelope.extend(timedelta(minutes=1))
    assert envelope.release(timedelta(hours=2))
    assert envelope.lease_lost is False
