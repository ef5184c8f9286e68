"""Group commit: one call serves all waiting callers, and each gets the result of its own item."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from delayed_queue.db.gathering import LoopGathering, LoopLocal

Call = Callable[[str, list[int]], Sequence[int | BaseException]]


class Calls:
    """Records calls; the first waits for its release. Negative items fail, zero fails all."""

    def __init__(self) -> None:
        self.made: list[list[int]] = []
        self.may_end = threading.Event()

    def __call__(self, place: str, items: list[int]) -> list[int | BaseException]:
        self.made.append(items)
        if len(self.made) == 1:
            assert self.may_end.wait(30)
        if 0 in items:
            raise LookupError(items)
        return [ValueError(item) if item < 0 else item * 10 for item in items]

    async def from_loop(self, place: str, items: list[int]) -> list[int | BaseException]:
        self.may_end.set()
        await asyncio.sleep(0)
        return self(place, items)


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls()
    yield calls
    calls.may_end.set()


def in_loop(calls: Calls, *items: int, name: Callable[[int], int] | None = None) -> list[object]:
    """Request 1 and, during that call, the items; return their results."""

    async def run() -> list[object]:
        gathering: LoopGathering[str, int, int] = LoopGathering(calls.from_loop, most=4, name=name)
        first = gathering.ask("a", 1)
        await asyncio.sleep(0)  # the first call starts now
        asked = [gathering.ask("a", item) for item in items]
        assert await first == 10
        return list(await asyncio.gather(*asked, return_exceptions=True))

    return asyncio.run(run())


def test_what_is_asked_meanwhile_is_one_call_in_the_order_of_in_loop(calls: Calls):
    assert in_loop(calls, 5, 3, 4) == [50, 30, 40]
    assert calls.made == [[1], [5, 3, 4]]


def test_a_call_takes_no_more_than_it_may(calls: Calls):
    assert in_loop(calls, *range(2, 12)) == [10 * n for n in range(2, 12)]
    assert calls.made == [[1], [2, 3, 4, 5], [6, 7, 8, 9], [10, 11]]


def test_items_of_one_name_are_never_in_one_call(calls: Calls):
    assert in_loop(calls, 2, 3, 12, 4, name=lambda item: item % 10) == [20, 30, 120, 40]
    assert calls.made == [[1], [2, 3], [12, 4]]


def test_an_error_of_a_call_reaches_exactly_those_who_asked_for_it(calls: Calls):
    *failed, good = in_loop(calls, 2, 0, 3, 4, 5)
    assert [type(each) for each in failed] == [LookupError] * 4
    assert good == 50


def test_an_item_may_fail_alone(calls: Calls):
    before, failed, after = in_loop(calls, 2, -3, 4)
    assert (before, after) == (20, 40)
    assert isinstance(failed, ValueError)


def test_what_was_asked_before_the_close_is_answered(calls: Calls) -> None:
    async def run() -> list[int]:
        gathering: LoopGathering[str, int, int] = LoopGathering(calls.from_loop, most=2, pause=0.01)
        asked = [gathering.ask("a", item) for item in (1, 2, 3)]
        asked += [gathering.ask("b", 4)]
        cancelled = gathering.ask("b", 5)
        cancelled.cancel()
        await gathering.close()
        return [each.result() for each in asked]

    assert asyncio.run(run()) == [10, 20, 30, 40]
    assert sorted(calls.made) == [[1, 2], [3], [4, 5]]


def test_when_the_loop_ends_those_who_wait_are_told() -> None:
    async def never(place: str, items: list[int]) -> list[int]:
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        return await future

    async def run() -> list[asyncio.Future[int]]:
        gathering: LoopGathering[str, int, int] = LoopGathering(never)
        asked = [gathering.ask("a", 1)]
        await asyncio.sleep(0)
        return [*asked, gathering.ask("a", 2)]

    assert all(each.cancelled() for each in asyncio.run(run()))


class TestLoopLocal:
    """An object for each event loop and key."""

    def test_it_is_made_once_for_each_and_closed_with_its_loop(self) -> None:
        closed: list[list[str]] = []

        async def close(made: list[str]) -> None:
            await asyncio.sleep(0)
            closed.append(made)

        local: LoopLocal[str, list[str]] = LoopLocal(lambda key: [key], close)

        async def run() -> list[str]:
            first = local.of("a")
            assert local.of("a") is first
            assert local.of("b") == ["b"]
            assert len(local) == 2
            return first

        first, second = asyncio.run(run()), asyncio.run(run())
        assert first is not second
        assert sorted(closed) == [["a"], ["a"], ["b"], ["b"]]
        assert len(local) == 0

    def test_it_is_closed_when_asked_for_and_made_anew(self) -> None:
        local: LoopLocal[None, object] = LoopLocal(lambda key: object())

        async def run() -> None:
            first = local.of(None)
            await local.close()
            assert local.of(None) is not first

        asyncio.run(run())

    def test_one_of_a_loop_that_was_not_shut_down_is_forgotten(self) -> None:
        local: LoopLocal[None, object] = LoopLocal(lambda key: object())

        async def make() -> object:
            return local.of(None)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(make())
        loop.close()
        asyncio.run(make())
        assert len(local) == 0
