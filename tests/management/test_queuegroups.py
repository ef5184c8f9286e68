"""The command that shows and sets the limits of groups (G6, G9)."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.declaring import handler
from delayed_queue.handlers import registry

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("queuegroups", *arguments, stdout=out)
    return out.getvalue()


def answer(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--format", "json"))


@pytest.fixture
def queue() -> DelayedQueue:
    queue = DelayedQueue("orders")
    queue.offer_batch([ScheduledMessage(key, 1, group=key[0]) for key in ("a1", "a2", "b1")])
    return queue


def test_limits_of_all_and_of_one_are_set_shown_and_cleared(queue: DelayedQueue):
    run("set", "orders", "--concurrency", "1", "--queue-rate", "10/s")
    run("limit", "orders", "b", "--concurrency", "3", "--weight", "2")
    of_all, of_one = answer("limits", "orders")
    assert (of_all["group"], of_all["concurrency"]) == (None, 1)
    assert of_all["queue_seconds_each"] == 0.1
    assert (of_one["group"], of_one["concurrency"], of_one["weight"]) == ("b", 3, 2)
    run("clear", "orders")
    run("limit", "orders", "b")
    assert answer("limits", "orders") == []


def test_what_is_held_back_is_listed_first_and_why(queue: DelayedQueue):
    run("set", "orders", "--concurrency", "1")
    run("pause", "orders", "b", "--why", "moving")
    assert queue.try_poll() is not None
    held = answer("list", "orders")
    assert [(each["group"], each["held"], each["leased"]) for each in held] == [
        ("a", "full", 1), ("b", "paused", 0)
    ]  # fmt: skip
    assert all(len(line) <= 80 for line in run("list", "orders").splitlines())


def test_what_the_queue_holds_back_is_listed_with_its_reason(queue: DelayedQueue):
    run("set", "orders", "--queue-rate", "1/h")
    assert queue.try_poll() is not None
    held = {each["group"]: each for each in answer("list", "orders")}
    assert held["b"]["held"] == "queue_throttled"
    assert held["b"]["until"] is not None
    queue.pause()
    assert {each["held"] for each in answer("list", "orders")} == {"queue_paused"}


@pytest.mark.parametrize("verb", ["pause", "resume", "limit"])
def test_o24_an_unknown_group_is_an_error_unless_forced(queue: DelayedQueue, verb: str):
    queue.offer_or_update("c1", 1, group="customer-17")
    with pytest.raises(CommandError, match=r"no group 'customer-71'\. Did you mean") as caught:
        run(verb, "orders", "customer-71")
    assert caught.value.returncode == 2
    run(verb, "orders", "customer-71", "--force")
    assert "customer-17" not in run("limits", "orders")


@pytest.mark.parametrize("state", ["leased", "dead", "limited"])
def test_o24_a_group_is_known_by_any_trace(queue: DelayedQueue, state: str):
    if state == "limited":
        queue.groups.limit("c", concurrency=1)
    else:
        queue.offer_or_update("c1", 1, group="c")
        for envelope in queue.try_poll_many(9):
            assert state == "leased" or envelope.reject("no")
    assert answer("pause", "orders", "c")["was_changed"]


def test_a_group_is_paused_and_resumed(queue: DelayedQueue):
    assert answer("pause", "orders", "a")["was_changed"]
    assert "paused already" in run("pause", "orders", "a")
    assert [each.key for each in queue.try_poll_many(5)] == ["b1"]
    assert "is changed" in run("resume", "orders", "a")
    assert "is not held" in run("resume", "orders", "a")


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "orders", "--concurrency", "1"),
        ("limit", "orders", "a", "--concurrency", "1"),
        ("pause", "orders", "a"),
        ("clear", "orders"),
    ],
)
def test_a_trial_changes_nothing(queue: DelayedQueue, arguments: tuple[str, ...]):
    assert not answer(*arguments, "--dry-run")["was_changed"]
    assert answer("limits", "orders") == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("set", "orders", "--order", "fifo", "--concurrency", "2"), "one at a time"),
        (("set", "orders", "--rate", "0/s"), "above zero"),
        (("limit", "orders", "a", "--concurrency", "0"), "not a number from 1"),
        (("pause", "orders", ""), "1 to 100 characters"),
        (("pause", "orderz", "a"), "did you mean 'orders'"),
    ],
)
def test_slips_are_answered_in_a_sentence(queue, arguments, says):
    with pytest.raises(CommandError, match=f"(?i){says}"):
        run(*arguments)


def test_a_queue_with_a_transactional_handler_gets_no_limits(queue: DelayedQueue):
    @handler("orders", transactional=True)
    def close(envelope: Envelope) -> None: ...

    try:
        with pytest.raises(CommandError, match="uses no leases"):
            run("pause", "orders", "a")
    finally:
        registry.remove("orders")
