"""A connection lost while a message is consumed (Q30)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter, Message
from tests.support.aiming import COMMIT, Stage
from tests.support.answers import present, stored
from tests.support.concurrency import calling
from tests.support.operations import PAST
from tests.support.processes import wait_until
from tests.support.proxy import Proxy


class Failed(Exception):
    """The handler's own exception."""


def terminate(proxy: Proxy, admin: psycopg.Connection[Any]) -> None:
    pid = connection.connection.info.backend_pid
    admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


def cut(proxy: Proxy, admin: psycopg.Connection[Any]) -> None:
    proxy.cut()


def write() -> None:
    Group.objects.create(name="too late")


def fail() -> None:
    raise Failed


LOSSES: Final = {"terminated": terminate, "cut": cut}
# Actions of the handler after the connection is lost.
REST: Final = {"returns": lambda: None, "writes": write, "fails": fail}


# Faults of the session whose statement the proxy holds.
LOSSES_OF_AIMED: Final[dict[str, Callable[[Proxy, psycopg.Connection[Any], int], object]]] = {
    "terminated": lambda proxy, admin, pid: admin.execute(
        "SELECT pg_terminate_backend(%s, 10000)", [pid]
    ),
    "cut": lambda proxy, admin, pid: proxy.cut_aimed(),
}


@pytest.fixture
def filled(queue: DelayedQueue) -> DelayedQueue:
    queue.offer_or_update("key", "payload", PAST)
    return queue


def consume(queue: DelayedQueue, *steps: Callable[[], Any]) -> None:
    """Write an effect, then run the steps."""
    with queue.consume() as envelope:
        Group.objects.create(name=present(envelope).key)
        for step in steps:
            step()


@pytest.mark.parametrize("rest", REST)
@pytest.mark.parametrize("loss", LOSSES)
def test_q30_a_connection_lost_inside_the_handler_leaves_the_message_as_it_was(
    filled: DelayedQueue, proxy: Proxy, admin: psycopg.Connection[Any], loss: str, rest: str
):
    """An error and no effect; the next consumer gets it as its first attempt."""
    with pytest.raises(Failed if rest == "fails" else OperationalError):
        consume(filled, lambda: LOSSES[loss](proxy, admin), REST[rest])

    assert not Group.objects.exists()
    assert stored(filled, "key").attempts == 0
    assert not DeadLetter.objects.exists()
    seen: list[tuple[str, int]] = []

    def is_handed_out() -> bool:
        """True if it was; the lost session's lock ends when the server notices."""
        with filled.consume() as envelope:
            seen.extend([] if envelope is None else [(envelope.key, envelope.attempt)])
        return bool(seen)

    wait_until(is_handed_out)
    assert seen == [("key", 1)]
    assert not Message.objects.exists()


def test_a_commit_whose_answer_was_swallowed_is_an_error_and_has_happened(filled, proxy):
    """Q27, Q30: the effect and the deletion commit together."""
    proxy.swallow_answer("COMMIT")

    with pytest.raises(OperationalError):
        consume(filled)

    assert list(Group.objects.values_list("name", flat=True)) == ["key"]
    assert not Message.objects.exists()


@pytest.mark.parametrize("loss", LOSSES_OF_AIMED)
@pytest.mark.parametrize("stage", Stage)
def test_q30_a_commit_that_is_lost_leaves_the_message_or_its_effect(
    filled: DelayedQueue, proxy: Proxy, admin: psycopg.Connection[Any], stage: Stage, loss: str
):
    """In the second round trip of a consumer, before the server has it, during and after."""
    aim = proxy.aim_at(COMMIT, stage)
    with calling(lambda: consume(filled)) as held:
        aim.wait()
        LOSSES_OF_AIMED[loss](proxy, admin, held.pid)
        with pytest.raises(OperationalError):
            held.answer()
        wait_until(lambda: not is_there(admin, held.pid))

    assert Group.objects.exists() != filled.contains_message("key")
    assert Group.objects.exists() == (stage is not Stage.UNSENT)


def is_there(admin: psycopg.Connection[Any], pid: int) -> bool:
    """True while the session has not noticed its end."""
    found = admin.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
    return found is not None


def test_q30_a_failure_whose_commit_was_swallowed_was_counted_once(filled, proxy):
    proxy.swallow_answer("COMMIT")

    with pytest.raises(OperationalError):
        consume(filled, fail)

    assert stored(filled, "key").attempts == 1
    assert not Group.objects.exists()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("found_by", ["the consumer", "another query"])
def test_q27_q33_a_lost_connection_is_an_error_once_and_is_then_replaced(
    filled: DelayedQueue, proxy: Proxy, admin: psycopg.Connection[Any], loss: str, found_by: str
):
    """Outside of requests the consumer itself must replace the connection."""
    LOSSES[loss](proxy, admin)

    with pytest.raises(OperationalError):
        consume(filled) if found_by == "the consumer" else Group.objects.count()

    consume(filled)
    assert list(Group.objects.values_list("name", flat=True)) == ["key"]
    assert not Message.objects.exists()
