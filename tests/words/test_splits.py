"""The split of a batch: failing messages are found with few calls (B3)."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.splits import Split, halves

SIZES = st.integers(1, 300)


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, set[int], list[int]]:
    """Draw a size, the positions that fail, and those that are handled alone."""
    size = draw(SIZES)
    positions = st.integers(0, size - 1)
    return size, draw(st.sets(positions, max_size=5)), draw(st.lists(positions, max_size=3))


def run(split: Split, poison: set[int]) -> tuple[list[range], list[int], list[int]]:
    """Return the calls, and the positions that were handled and that failed alone."""
    calls: list[range] = []
    done: list[int] = []
    failed: list[int] = []
    while (part := split.next_part()) is not None:
        calls.append(part)
        if poison.isdisjoint(part):
            done += part
        elif split.failed(part):
            failed += part
    return calls, done, failed


@given(batches())
def test_b3_only_failing_messages_fail_and_the_others_are_handled_once(batch):
    size, poison, alone = batch
    calls, done, failed = run(Split(size, alone), poison)
    assert failed == sorted(poison)
    assert done == sorted(set(range(size)) - poison)
    assert all(len(part) == 1 for part in calls if set(alone) & set(part))


@given(batches())
def test_b3_each_failing_message_costs_few_calls(batch):
    """At most 2·⌈log2 n⌉ calls more for each."""
    size, poison, _ = batch
    calls, _, _ = run(Split(size), poison)
    assert len(calls) - 1 <= len(poison) * 2 * math.ceil(math.log2(size))


@given(SIZES)
def test_halves_are_both_parts_in_their_order(size: int) -> None:
    parts = halves(range(size))
    assert [each for part in parts for each in part] == list(range(size))
    assert len(parts) == min(size, 2)
    assert len(parts[0]) - len(parts[-1]) in {0, 1}
