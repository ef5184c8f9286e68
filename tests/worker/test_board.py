"""The board: a supervisor reads the records of each process, with other records beside them."""

from __future__ import annotations

import os
import time

import pytest

from delayed_queue.worker.board import COUNTERS, LEASE_BYTES, MAX_LEASES, Board, InFlight
from delayed_queue.worker.process.crashes import CrashReport

SLOTS = 5


def lease(number: int) -> str:
    return f"{number:0{LEASE_BYTES}d}"


def test_each_part_keeps_to_its_place():
    """All at once, from the first slot to the last: nothing overwrites anything."""
    board = Board.new(SLOTS)
    before = time.monotonic()
    leases = [lease(each) for each in range(MAX_LEASES)]
    board.hold(leases[2:], suspects=leases[:2])
    board.isolate(2.5)
    board.set_holder("fedcba98")
    board.set_strays(3)
    board.count(range(1, len(COUNTERS) + 1))
    for slot in range(SLOTS):
        board.take(slot, 2**62 + slot)
        board.mark(slot, is_suspect=slot == 1, is_transactional=slot == 2)
    board.turn()

    assert before <= board.turned_at <= time.monotonic()
    assert (board.held(), board.held_suspects()) == (leases, leases[:2])
    assert board.alone_seconds == 2.5
    assert (board.holder, board.strays) == ("fedcba98", 3)
    assert list(board.counters().values()) == list(range(1, len(COUNTERS) + 1))
    assert board.in_flight() == [InFlight(2**62 + n, n == 1, n == 2) for n in range(SLOTS)]


def test_leases_beyond_its_room_are_left_out():
    board = Board.new(SLOTS)
    board.take(SLOTS - 1, 7)
    board.hold([lease(each) for each in range(MAX_LEASES + 3)])
    assert board.held() == [lease(each) for each in range(MAX_LEASES)]
    assert board.in_flight() == [InFlight(7, False, False)]


def test_wiped_it_keeps_the_counters_and_what_the_supervisor_wrote():
    board = Board.new(SLOTS)
    board.turn()
    board.hold([lease(1)], suspects=[lease(2)])
    board.isolate(10)
    board.set_holder("fedcba98")
    board.set_strays(1)
    board.count([3] * len(COUNTERS))
    board.take(0, 1)
    board.mark(0, is_suspect=True)
    board.wipe()
    assert (board.turned_at, board.held(), board.in_flight()) == (0, [], [])
    assert (board.held_suspects(), board.alone_seconds) == ([], 10)
    assert (board.holder, board.strays) == ("", 0)
    assert board.counters() == dict.fromkeys(COUNTERS, 3)
    board.take(0, 2)
    assert board.in_flight() == [InFlight(2, False, False)]


# Python 3.12 and later warn about fork in a process with several threads, as pytest is.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_what_a_process_wrote_outlives_it() -> None:
    board = Board.new(SLOTS)
    before = time.monotonic()
    pid = os.fork()
    if pid == 0:
        board.turn()
        board.hold([lease(1)])
        board.take(4, 11)
        board.mark(4, is_suspect=True)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    # One clock for all processes of the machine.
    assert before <= board.turned_at <= time.monotonic()
    assert (board.held(), board.in_flight()) == ([lease(1)], [InFlight(11, True, False)])


def remains_of(in_flight: int) -> CrashReport:
    board = Board.new(SLOTS)
    for slot in range(in_flight):
        board.take(slot, slot + 1)
        board.mark(slot, is_suspect=False, is_transactional=slot == 1)
    return CrashReport.of(board)


class TestRemains:
    @pytest.mark.parametrize("in_flight", [0, 1, 2, SLOTS])
    def test_only_of_one_that_was_alone_it_is_known(self, in_flight: int):
        assert remains_of(in_flight).is_known == (in_flight == 1)

    def test_beside_an_abandoned_thread_it_is_not_known(self):
        board = Board.new(SLOTS)
        board.take(0, 1)
        board.set_strays(1)
        assert not CrashReport.of(board).is_known

    def test_what_was_begun_in_transactions_is_kept_apart(self):
        report = remains_of(3)
        assert report.begun(transactional=False) == [1, 3]
        assert report.begun(transactional=True) == [2]
        assert report.leased().begun(transactional=True) == []
        assert report.leased().begun(transactional=False) == [1, 3]
        assert not report.leased().is_known

    def test_each_lease_counts_once(self):
        board = Board.new(SLOTS)
        board.hold([lease(1), lease(2), lease(1)], suspects=[lease(3)])
        report = CrashReport.of(board)
        assert report.lease_ids == (lease(3), lease(1), lease(2))
        assert report.suspect_leases == (lease(3),)
