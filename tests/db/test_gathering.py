"""Group commit: one call for all who asked meanwhile, and to each the answer to its own item."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from delayed_queue.db.gathering import LoopGathering, LoopLocal, ThreadGathering
from delayed_queue.exceptions import OutcomeUnknown
from tests.support.processes import wait_until

Call = Callable[[str, list[int]], Sequence[int | BaseException]]


class Calls:
    """Notes each call; the first waits until it may end. Negative items fail, zero fails all."""

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


class Threads:
    """Asks in threads, each in line before the next one asks."""

    def __init__(
        self, call: Call, calls: Calls, most: int = 4, name: Callable[[int], int] | None = None
    ) -> None:
        self.gathering: ThreadGathering[str, int, int] = ThreadGathering(call, most=most, name=name)
        self._calls = calls

    def futures(self, *items: int) -> list[Future[int]]:
        """Ask for 1 and, while that is called for, for the items; then let the first call end."""
        pool = ThreadPoolExecutor(len(items) + 1)
        futures = [pool.submit(self.gathering.ask, "a", 1)]
        wait_until(lambda: bool(self._calls.made))
        for length, item in enumerate(items, 1):
            futures.append(pool.submit(self.gathering.ask, "a", item))
            wait_until(partial(self._is_line, length))
        self._calls.may_end.set()
        pool.shutdown()
        assert futures[0].result() == 10
        return futures[1:]

    def _is_line(self, length: int) -> bool:
        return self.gathering.waiting("a") == length


def in_loop(calls: Calls, *items: int, name: Callable[[int], int] | None = None) -> list[object]:
    """Ask for 1 and, while that is called for, for the items; return what came of these."""

    async def run() -> list[object]:
        gathering: LoopGathering[str, int, int] = LoopGathering(calls.from_loop, most=4, name=name)
        first = gathering.ask("a", 1)
        await asyncio.sleep(0)  # the first call is made now
        asked = [gathering.ask("a", item) for item in items]
        assert await first == 10
        return list(await asyncio.gather(*asked, return_exceptions=True))

    return asyncio.run(run())


def in_threads(calls: Calls, *items: int, name: Callable[[int], int] | None = None) -> list[object]:
    futures = Threads(calls, calls, name=name).futures(*items)
    return [each.exception() or each.result() for each in futures]


Asking = Callable[..., list[object]]
both = pytest.mark.parametrize("asking", [in_threads, in_loop])


@both
def test_what_is_asked_meanwhile_is_one_call_in_the_order_of_asking(calls: Calls, asking: Asking):
    assert asking(calls, 5, 3, 4) == [50, 30, 40]
    assert calls.made == [[1], [5, 3, 4]]


@both
def test_a_call_takes_no_more_than_it_may(calls: Calls, asking: Asking):
    assert asking(calls, *range(2, 12)) == [10 * n for n in range(2, 12)]
    assert calls.made == [[1], [2, 3, 4, 5], [6, 7, 8, 9], [10, 11]]


@both
def test_items_of_one_name_are_never_in_one_call(calls: Calls, asking: Asking):
    assert asking(calls, 2, 3, 12, 4, name=lambda item: item % 10) == [20, 30, 120, 40]
    assert calls.made == [[1], [2, 3], [12, 4]]


@both
def test_an_error_of_a_call_reaches_exactly_those_who_asked_for_it(calls: Calls, asking: Asking):
    *failed, good = asking(calls, 2, 0, 3, 4, 5)
    assert [type(each) for each in failed] == [LookupError] * 4
    assert good == 50


@both
def test_an_item_may_fail_alone(calls: Calls, asking: Asking):
    before, failed, after = asking(calls, 2, -3, 4)
    assert (before, after) == (20, 40)
    assert isinstance(failed, ValueError)


def test_a_thread_that_is_interrupted_leaves_nobody_waiting(calls: Calls) -> None:
    """The others are told that nobody knows; those behind them are called for."""

    def interrupted(place: str, items: list[int]) -> Sequence[int | BaseException]:
        if 2 in items:
            raise KeyboardInterrupt
        return calls(place, items)

    threads = Threads(interrupted, calls, most=2)
    caller, other, behind = threads.futures(2, 3, 4)
    assert isinstance(caller.exception(), KeyboardInterrupt)
    assert isinstance(other.exception(), OutcomeUnknown)
    assert behind.result() == 40
    assert threads.gathering.is_idle()


def test_places_do_not_wait_for_one_another(calls: Calls) -> None:
    gathering: ThreadGathering[str, int, int] = ThreadGathering(calls)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(gathering.ask, "a", 1)
        wait_until(lambda: bool(calls.made))
        assert gathering.ask("b", 2) == 20
        calls.may_end.set()
        assert first.result() == 10


def test_as_many_call_at_a_time_as_may(calls: Calls) -> None:
    gathering: ThreadGathering[str, int, int] = ThreadGathering(calls, callers=2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(gathering.ask, "a", 1)
        wait_until(lambda: bool(calls.made))
        assert gathering.ask("a", 2) == 20
        calls.may_end.set()
        assert first.result() == 10


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
