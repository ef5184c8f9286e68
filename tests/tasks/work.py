"""Tasks controlled by their arguments; imported once TASKS declares their queues."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from datetime import date, timedelta
from typing import Any, Final

from delayed_queue import Reject, Snooze
from delayed_queue.tasks import Cancelled, policy
from delayed_queue.tasks._api import task
from tests.support.processes import wait_until
from tests.workerapp.models import Effect

# Records of tasks in their order, and the gate that waiting tasks wait for.
said: Final[list[Any]] = []
gate: Final = threading.Event()


@task
def add(one: int, other: int = 0) -> int:
    said.append((one, other, threading.current_thread().name))
    return one + other


@task
async def aadd(one: int, other: int = 0) -> int:
    said.append((one, other, threading.current_thread().name))
    await asyncio.sleep(0)
    return one + other


@task
def fail(text: str = "no") -> None:
    said.append(text)
    raise ValueError(text)


@task
async def afail(text: str = "no") -> None:
    raise ValueError(text)


class Torn(list[Any]):
    """A sequence that raises when it is read."""

    def __iter__(self) -> Any:
        raise LookupError("its connection is closed")


# Return values that cannot be stored, and the path of each fault.
UNSTORABLE: Final[dict[str, tuple[Any, str]]] = {
    "set": ([{"of": {1}}], "return value[0]['of'], set, cannot be stored: use a list"),
    "date": ({"on": date(2030, 1, 2)}, "return value['on'], date, cannot be stored: use its iso"),
    "nan": ([0, float("nan")], "return value[1], float, cannot be stored: JSON has no NaN"),
    "nul": ({"receipt": ["a\x00b"]}, "return value['receipt'][0] cannot be stored: it has a NUL"),
    "nul key": ({"a\x00b": 1}, "key 'a\\x00b' of return value cannot be stored: it has a NUL"),
    "half": (["\ud800"], "return value[0], str, cannot be stored: it has half of a surrogate pair"),
    "half key": ({"\ud800": 1}, "key '\\ud800' of return value, str, cannot be stored"),
    "large": ("a" * 10_000_001, "return value cannot be stored: it has 10000003 characters"),
    "torn": (Torn(), "return value cannot be stored: LookupError: its connection is closed"),
}


@task
@policy(max_attempts=3, backoff=lambda error, result: 0)
def leave(what: str) -> Any:
    said.append(what)
    return UNSTORABLE[what][0] if what in UNSTORABLE else what


@task
@policy(max_attempts=3, backoff=lambda error, result: 0)
async def aleave(what: str) -> Any:
    return leave.func(what)


@task
@policy(max_attempts=3, backoff=lambda error, result: 0, transactional=True)
def leave_in_transaction(what: str) -> Any:
    return leave.func(what)


@task
def answer(how: str) -> None:
    said.append(how)
    if len(said) == 1:
        raise Snooze(timedelta(0)) if how == "snooze" else Reject("as asked")


@task(takes_context=True)
def tell(context: Any, *args: Any) -> dict[str, Any]:
    return {"attempt": context.attempt, "id": context.task_result.id, "args": list(args)}


@task(takes_context=True)
def advance(context: Any) -> bool:
    """Report progress, then wait until the gate is open or the task is cancelled."""
    context.progress(0.5, "half")
    said.append("advanced")
    wait_until(lambda: gate.is_set() or context.is_cancelled)
    if context.is_cancelled:
        raise Cancelled
    return True


@task
async def endless() -> None:
    said.append("begun")
    try:
        await asyncio.Event().wait()
    finally:
        said.append("ended")


@policy(max_attempts=3, backoff=lambda error, result: 0)
def _thrice(ends: int = 9) -> int:
    said.append("try")
    if len(said) < ends:
        raise ValueError(f"try {len(said)}")
    return len(said)


_thrice.__name__ = _thrice.__qualname__ = "thrice"
thrice = task(_thrice)


@task
@policy(max_attempts=5, backoff=lambda error, result: None)
def hopeless() -> None:
    said.append("try")
    raise ValueError("hopeless")


@task
@policy(timeout=0.2)
def slow() -> None:
    gate.wait(20)


@task
@policy(timeout=0.2)
async def aslow() -> None:
    await asyncio.sleep(20)


@task
@policy(transactional=True)
def pay(key: str, fails: bool = False) -> str:
    Effect.objects.create(queue="pay", key=key, attempt=1, pid=os.getpid())
    if fails:
        raise ValueError("after the effect")
    return key


@task
@policy(unique="{0}")
def once(name: str, value: int = 0) -> int:
    said.append((name, value))
    return value


@task
@policy(unique=lambda name, value: name, replace=True)
def latest(name: str, value: int) -> int:
    said.append((name, value))
    return value


@task
@policy(expires_in="1h")
def fleeting() -> None: ...


@task(takes_context=True)
def summarize(context: Any, name: str) -> list[Any]:
    return [name, context.batch_counts]


@task(takes_context=True)
def report_batch(context: Any) -> list[Any]:
    return [context.batch, context.batch_counts]


@task(takes_context=True)
def fan_out(context: Any, depth: int) -> None:
    """Add two members, each of which adds two."""
    if depth:
        context.batch.enqueue_many(fan_out, [depth - 1] * 2)


@task(takes_context=True)
async def afan_out(context: Any, depth: int) -> None:
    for _ in range(2 if depth else 0):
        await context.batch.aenqueue(afan_out, depth - 1)


@task
def effect(key: str) -> None:
    Effect.objects.create(queue="effect", key=key, attempt=1, pid=os.getpid())


@task
def settle(key: str) -> str:
    """Write an effect; more than one if a worker was killed after it."""
    Effect.objects.create(queue="settle", key=key, attempt=1, pid=os.getpid())
    return key


@task
def die() -> None:
    """Kill the process, as a segmentation fault does."""
    os._exit(1)


@task
@policy(http=True)
def receive(order: int, *, gift: bool = False) -> str:
    return f"order {order}{' as a gift' * gift}"


@task(takes_context=True)
@policy(http=True)
def receive_with_context(context: Any, order: int) -> str:
    return f"{context.attempt}: {order}"


# Running tasks per customer, and their maximum.
running_now: Counter[int] = Counter()
most_at_a_time: Counter[int] = Counter()
_counting = threading.Lock()


@task
def serve(customer: int) -> None:
    with _counting:
        running_now[customer] += 1
        most_at_a_time[customer] = max(most_at_a_time[customer], running_now[customer])
    threading.Event().wait(0.01)
    with _counting:
        running_now[customer] -= 1


@task
def echo(value: Any) -> Any:
    said.append(value)
    return value


@task
def give(what: str, times: int) -> Any:
    """Return text of that length, a list nested that deeply, or a number of that many digits."""
    if what == "nested":
        found: Any = None
        for _ in range(times):
            found = [found]
        return found
    return "x" * times if what == "text" else 10**times


class Unprintable(Exception):
    """An error that can be neither printed nor pickled."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise TypeError("no pickle")


def _odd_errors() -> dict[str, BaseException]:
    broken = SyntaxError("broken")
    broken.lineno, broken.offset, broken.text = 1, 1, 5  # type: ignore[assignment]
    looped = ValueError("looped")
    looped.__cause__ = KeyError("inner")
    looped.__cause__.__cause__ = looped
    noted = ValueError("noted")
    noted.__notes__ = 5  # type: ignore[assignment]
    return {
        "unprintable": Unprintable(), "broken": broken, "looped": looped, "noted": noted,
        "nul": ValueError("a\x00b"), "long": ValueError("x" * 10**6),
        "group": BaseExceptionGroup("many", [Unprintable(), KeyboardInterrupt()]),
        "exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "generator": GeneratorExit(),
        "name": type("N" * 10_000, (Exception,), {})(), "stop": StopIteration(),
        "module": type("Odd", (Exception,), {"__module__": "a\x00b" * 400})(),
    }  # fmt: skip


@task
def throw(how: str) -> None:
    raise _odd_errors()[how]


@task
async def athrow(how: str) -> None:
    raise _odd_errors()[how]
