"""Installing and removing ticks: contract lines C1 to C5 and C7."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from delayed_queue import CronMessage, DelayedQueue
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.testing import ManualClock
from tests.queue.contract.support import HOUR, MINUTE, MakeQueue, leased, polled_keys

A, B, C = "a" * 32, "b" * 32, "c" * 32


def ticks(clock: ManualClock, *hours: float, payload: Any = "tick") -> list[CronMessage]:
    return [CronMessage(payload, clock() + each * HOUR) for each in hours]


def key(at: datetime, config_hash: str = A, prefix: str = "report") -> str:
    return f"{prefix}/{config_hash}/{int(at.timestamp() * 1000)}"


def test_ticks_are_keyed_by_schedule_at_and_due_at_deliver_at(queue, clock):
    planned, due = clock() + HOUR, clock() + 2 * HOUR
    report = queue.cron.install_tick(A, "report", [CronMessage({"n": 1}, planned, due)])

    assert report.created == 1
    stored = queue.read(key(planned))
    assert stored is not None
    assert (stored.payload, stored.scheduled_at) == ({"n": 1}, due)


def test_c1_the_ticks_of_every_other_hash_are_replaced(queue: DelayedQueue, clock: ManualClock):
    queue.cron.install_tick(A, "report", ticks(clock, 1, 2))
    queue.cron.install_tick(B, "report", ticks(clock, 1))
    queue.offer_or_update(key(clock() + HOUR, "d" * 32), "of a service of another language")

    report = queue.cron.install_tick(C, "report", ticks(clock, 1, 2, 3))

    assert (report.created, report.removed) == (3, 2)
    clock.advance(4 * HOUR)
    assert {each.split("/")[1] for each in polled_keys(queue)} == {C}


def test_c1_the_same_again_keeps_what_is_there(queue: DelayedQueue, clock: ManualClock):
    queue.cron.install_tick(A, "report", ticks(clock, 1, 2, payload="first"))

    report = queue.cron.install_tick(A, "report", ticks(clock, 1, 2, 3, payload="second"))

    assert (report.created, report.kept, report.removed) == (1, 2, 0)
    clock.advance(3 * HOUR)
    payloads = [each.payload for each in queue.try_poll_many(10)]
    assert payloads == ["first", "first", "second"]


def test_c1_an_empty_list_only_removes(queue: DelayedQueue, clock: ManualClock):
    queue.cron.install_tick(A, "report", ticks(clock, 1))
    assert queue.cron.install_tick(A, "report", []).removed == 0
    assert queue.cron.install_tick(B, "report", []).removed == 1
    assert queue.stats().scheduled == 0


def test_c1_all_or_nothing(queue: DelayedQueue, clock: ManualClock):
    queue.cron.install_tick(A, "report", ticks(clock, 1))
    bad = [*ticks(clock, 1), CronMessage(object(), clock() + 2 * HOUR)]

    with pytest.raises(InvalidMessage):
        queue.cron.install_tick(B, "report", bad)

    assert queue.contains_message(key(clock() + HOUR))
    assert not queue.contains_message(key(clock() + HOUR, B))
    assert queue.cron.install_tick(A, "report", ticks(clock, 1)).kept == 1


@pytest.mark.django_db
def test_c1_part_of_the_callers_transaction():
    clock = ManualClock()
    queue = DelayedQueue("orders", clock=clock)
    with transaction.atomic():
        queue.cron.install_tick(A, "report", ticks(clock, 1))
        transaction.set_rollback(True)
    assert not queue.contains_message(key(clock() + HOUR))
    assert queue.cron.install_tick(A, "report", ticks(clock, 1)).created == 1


def test_c2_prefix_and_hash_match_exactly(queue: DelayedQueue, clock: ManualClock):
    at = clock() + HOUR
    others = [
        key(at, A, "jobXreport"), key(at, A, "job_report2"), key(at, A, "job"),
        key(at, A, "job_report/daily"), "job_report/user-message", "job_report/order/42",
        f"job_report/{A}", f"job_report/{A}/12x", f"job_report/{A}/", f"job_report/{A}/1/2",
        key(at, A, "Job_report"), key(at, A, "job_repor%"), "job_report0", "job_report",
    ]  # fmt: skip
    for each in others:
        queue.offer_or_update(each, "mine", at)
    queue.cron.install_tick(A, "job_report", ticks(clock, 1))

    assert queue.cron.install_tick(B, "job_report", ticks(clock, 1)).removed == 1
    assert queue.cron.uninstall_tick(B, "job_report") == 1

    clock.advance(HOUR)
    assert sorted(polled_keys(queue)) == sorted(others)


def test_c2_other_queues_are_another_matter(queue, make_queue, clock):
    other = make_queue("invoices", clock=clock)
    other.cron.install_tick(A, "report", ticks(clock, 1))
    assert queue.cron.install_tick(B, "report", ticks(clock, 1)).removed == 0
    assert queue.cron.uninstall_tick(A, "report") == 0
    assert other.contains_message(key(clock() + HOUR))


def test_c3_uninstalling_removes_that_hash_alone(queue: DelayedQueue, clock: ManualClock):
    queue.cron.install_tick(A, "report", ticks(clock, 1, 2))
    foreign = key(clock() + HOUR, B)
    queue.offer_or_update(foreign, "x", clock() + HOUR)

    assert queue.cron.uninstall_tick(B, "report") == 1
    assert queue.cron.uninstall_tick(A, "report") == 2
    assert queue.cron.uninstall_tick(A, "report") == 0


@pytest.mark.parametrize("removal", ["install", "uninstall"])
def test_c4_a_leased_tick_survives(queue: DelayedQueue, clock: ManualClock, removal: str):
    queue.cron.install_tick(A, "report", ticks(clock, 0, 1))
    envelope = leased(queue)

    if removal == "install":
        removed = queue.cron.install_tick(B, "report", ticks(clock, 1)).removed
    else:
        removed = queue.cron.uninstall_tick(A, "report")

    assert removed == 1
    assert envelope.acknowledge()


def test_c4_a_lease_that_ran_out_is_none(queue: DelayedQueue, clock: ManualClock):
    queue.cron.install_tick(A, "report", ticks(clock, 0))
    leased(queue)
    clock.advance(queue.lease_duration)
    assert queue.cron.install_tick(B, "report", []).removed == 1


def test_c4_the_first_run_of_a_restarted_installer_steals_no_lease(queue, clock):
    queue.cron.ticks.install(A, "report", ticks(clock, 0, payload="old"), can_update=True)
    envelope = leased(queue)

    report = queue.cron.ticks.install(A, "report", ticks(clock, 0, payload="new"), can_update=True)

    assert (report.kept, report.updated) == (1, 0)
    assert envelope.acknowledge()
    assert not queue.contains_message(envelope.key)


def test_c7_a_tick_that_was_handled_is_not_created_again(queue: DelayedQueue, clock: ManualClock):
    again = ticks(clock, 0, 1)
    queue.cron.install_tick(A, "report", again)
    assert leased(queue).acknowledge()

    report = queue.cron.install_tick(A, "report", again)

    assert (report.kept, report.skipped, report.created) == (1, 1, 0)


def test_c7_not_by_a_host_whose_clock_is_behind(make_queue: MakeQueue, clock: ManualClock):
    late = ManualClock(clock() - 3 * HOUR)
    queue, behind = make_queue("orders", clock=clock), make_queue("orders", clock=late)
    queue.cron.install_tick(A, "report", ticks(clock, 0, 1))
    assert leased(queue).acknowledge()
    assert behind.cron.install_tick(A, "report", ticks(clock, -1, 0, 1)).created == 0


def test_c7_not_under_a_new_configuration_or_after_an_uninstall(queue, clock):
    queue.cron.install_tick(A, "report", ticks(clock, 0, 1))
    assert leased(queue).acknowledge()

    changed = queue.cron.install_tick(B, "report", ticks(clock, 0, 1))
    assert (changed.skipped, changed.created) == (1, 1)
    queue.cron.uninstall_tick(B, "report")
    back = queue.cron.install_tick(A, "report", ticks(clock, 0, 1))
    assert (back.skipped, back.created) == (1, 1)


def test_c7_a_dropped_tick_stays_dropped(queue: DelayedQueue, clock: ManualClock):
    queue.cron.install_tick(A, "report", ticks(clock, 1, 2))
    queue.drop_message(key(clock() + HOUR))
    assert queue.cron.install_tick(A, "report", ticks(clock, 1, 2, 3)).skipped == 1


@pytest.mark.parametrize("prefix", ["", "  ", "x" * 160, "a\x00b"])
def test_c8_prefixes_that_are_refused(queue: DelayedQueue, clock: ManualClock, prefix: str):
    with pytest.raises(InvalidConfiguration):
        queue.cron.install_tick(A, prefix, ticks(clock, 1))
    with pytest.raises(InvalidConfiguration):
        queue.cron.uninstall_tick(A, prefix)


@pytest.mark.parametrize("config_hash", ["", "a/b"])
def test_c8_hashes_that_are_refused(queue: DelayedQueue, clock: ManualClock, config_hash: str):
    with pytest.raises(InvalidConfiguration):
        queue.cron.install_tick(config_hash, "report", ticks(clock, 1))


def test_what_is_no_cron_message_is_refused(queue: DelayedQueue):
    with pytest.raises(InvalidMessage, match="CronMessage"):
        queue.cron.install_tick(A, "report", ["tick"])  # type: ignore[list-item]


def test_a_tick_in_another_transactions_hands_is_left_alone(make_shared_queue, clock):
    """Inside consume() the tick is deleted in its own transaction, and must not come back."""
    queue = make_shared_queue("orders", clock=clock)
    queue.cron.install_tick(A, "report", ticks(clock, 0, 1))
    with queue.consume() as envelope:
        assert envelope is not None
        assert queue.cron.install_tick(A, "report", ticks(clock, 0, 1)).skipped == 1
    clock.advance(10 * MINUTE)
    assert queue.try_poll() is None


def test_the_clock_of_the_database_serves_too(make_queue: MakeQueue):
    queue = make_queue("orders")
    at = datetime.now().astimezone() - timedelta(seconds=1)
    assert queue.cron.install_tick(A, "report", [CronMessage(1, at)]).created == 1
    assert leased(queue).scheduled_at == at.replace(microsecond=at.microsecond // 1000 * 1000)
