"""The circuit breaker: the table of its transitions, and its times."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Final

import pytest

from delayed_queue.rates import Circuit, Event, Results, State

PAUSE: Final = timedelta(seconds=10)
TIMEOUT: Final = timedelta(seconds=4)
# One row per state; an event that is not named leaves the state as it is.
AFTER: Final = {
    State.CLOSED: {Event.TRIP: State.OPEN},
    State.OPEN: {Event.EXPIRE: State.HALF_OPEN},
    State.HALF_OPEN: {Event.PROBE: State.PROBING},
    State.PROBING: {
        Event.SUCCEED: State.CLOSED, Event.FAIL: State.OPEN, Event.DROP: State.HALF_OPEN,
        Event.EXPIRE: State.HALF_OPEN,
    },
}  # fmt: skip


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def circuit(clock: list[float]) -> Circuit:
    return Circuit(2, PAUSE, probe_timeout=TIMEOUT, clock=lambda: clock[0])


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_each_event_in_each_state(circuit, clock, state, event):
    circuit.set(state)
    expected = AFTER[state].get(event, state)
    if event is Event.EXPIRE:
        clock[0] += 10
    else:
        assert circuit.on(event) is (expected is not state)
    assert circuit.state is expected


def test_it_opens_when_the_results_are_bad_and_forgets_them(circuit: Circuit) -> None:
    assert [circuit.note(is_failure=each) for each in (True, False, True)] == [False] * 3
    assert not circuit.is_open
    assert circuit.note(is_failure=True)
    assert circuit.state is State.OPEN
    assert not circuit.results.are_bad


def test_late_results_change_nothing_while_it_is_open(circuit: Circuit) -> None:
    circuit.set(State.OPEN)
    assert not circuit.note(is_failure=False)
    assert not circuit.note(is_failure=True)
    assert (circuit.state, circuit.left()) == (State.OPEN, PAUSE)


def test_calls_wait_for_the_pause_and_then_for_the_probe(circuit, clock):
    assert circuit.wait() == timedelta(0)
    circuit.set(State.OPEN)
    clock[0] += 9
    assert circuit.wait() == timedelta(seconds=1)
    clock[0] += 1
    assert circuit.left() == timedelta(0)
    assert circuit.wait() == timedelta(0)
    assert circuit.wait() == circuit.left() == TIMEOUT


@pytest.mark.parametrize("end", ["spared", "silent"])
def test_another_call_replaces_a_probe_without_a_result(circuit, clock, end):
    circuit.set(State.PROBING)
    if end == "spared":
        circuit.spare()
    else:
        clock[0] += 4
    assert circuit.wait() == timedelta(0)
    assert circuit.wait() == TIMEOUT


def test_a_state_recorded_elsewhere_lasts_as_long_as_it_is_told(circuit, clock):
    circuit.note(is_failure=True)
    circuit.set(State.CLOSED)
    assert circuit.note(is_failure=True), "the results of a closed circuit stay"
    circuit.set(State.OPEN, 60)
    assert circuit.left() == timedelta(seconds=60)
    clock[0] += 60
    assert circuit.state is State.HALF_OPEN


@pytest.mark.parametrize(
    ("results", "are_bad"),
    [
        ("FF", True), ("FSF", False), ("", False), ("SSSSSSFS", False), ("FSFSFSSF", True),
        ("FSFSFS", False), ("SSSSFSFSF", False), ("SSSSFSFSFSF", True),
    ],
)  # fmt: skip
def test_results_are_bad_after_two_failures_in_a_row_or_four_of_eight(results, are_bad):
    found = Results(2)
    for each in results:
        found.note(is_failure=each == "F")
    assert found.are_bad is are_bad
