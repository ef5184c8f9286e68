"""Callbacks per second of one process against bare aiohttp: ``python -m benchmarks.callbacks``.

The receiver is a process of its own. The ways take turns in one process and one event loop, so
that others who use the machine slow down all alike.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import platform
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Final, NamedTuple

import aiohttp
import django
from django.conf import settings

from benchmarks.figures import Report, Table, parser_for, percentile, say

DELAYS_MS: Final = (0, 100)
BODY: Final = b'{"orderId": "4711", "state": "unpaid", "note": "' + b"x" * 200 + b'"}'
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"

Way = Callable[[], Awaitable[None]]


class Turn(NamedTuple):
    """What was measured of one turn; the CPU time does not mind who else uses the machine."""

    rate: float
    cpu_us: float


class Receiver(asyncio.Protocol):
    """Answers every POST after a delay; does no more than it must, to be no limit."""

    delay = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
        if end and len(body) >= int(length):
            self._buffer = b""
            loop = asyncio.get_running_loop()
            loop.call_later(self.delay, self._transport.write, ANSWER)


def _receive(ports: Connection) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for delay in DELAYS_MS:
            answering = type("Answering", (Receiver,), {"delay": delay / 1000})
            server = await loop.create_server(answering, "127.0.0.1", 0, backlog=1024)
            ports.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(main())


@contextmanager
def receiving() -> Iterator[dict[int, int]]:
    """Have a receiver; its port for each delay."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_receive, args=(theirs,), daemon=True)
    process.start()
    try:
        yield {delay: ours.recv() for delay in DELAYS_MS}
    finally:
        process.kill()
        process.join()


def main() -> None:
    """Measure bare aiohttp, the client, and the client with signatures, at each delay."""
    options = _options()
    # The client imports what needs the models.
    apps = ["delayed_queue", "delayed_queue.http"]
    settings.configure(SECRET_KEY="benchmark" * 5, USE_TZ=True, INSTALLED_APPS=apps)
    django.setup()
    with receiving() as ports:
        rates = {
            delay: asyncio.run(_measured(f"http://127.0.0.1:{port}/hook", port, options))
            for delay, port in ports.items()
        }
    report = Report(_machine(), data={"rates": rates})
    report.tables.append(_table(rates, options))
    report.write(options)


def _options() -> Namespace:
    parser = parser_for("callbacks", __doc__)
    parser.add_argument("--seconds", type=float, help="a turn of each way (1; quick 0.3)")
    parser.add_argument("--rounds", type=int, help="turns of each way (9; quick 2)")
    parser.add_argument("--concurrency", type=int, default=100, help="callbacks at a time (100)")
    options = parser.parse_args()
    options.seconds = options.seconds or (0.3 if options.quick else 1.0)
    options.rounds = options.rounds or (2 if options.quick else 9)
    return options


async def _measured(url: str, port: int, options: Namespace) -> dict[str, list[Turn]]:
    async with AsyncExitStack() as stack:
        ways = await _ways(url, port, stack)
        for way in ways.values():
            await _rate(way, 0.2, options.concurrency)
        rates: dict[str, list[Turn]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                rates[name].append(await _rate(way, options.seconds, options.concurrency))
    return rates


async def _ways(url: str, port: int, stack: AsyncExitStack) -> dict[str, Way]:
    from delayed_queue.http.callbacks.calls import CallbackRequest, new_secret, sign
    from delayed_queue.http.callbacks.client import CallbackClient
    from delayed_queue.http.conf import CallbackSettings

    session = await stack.enter_async_context(
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    )
    reaching = CallbackSettings(ALLOWED_NETWORKS=["127.0.0.1"], ALLOWED_PORTS=[port])
    client = await stack.enter_async_context(CallbackClient(reaching))
    secrets = [new_secret()]

    async def bare() -> None:
        async with session.post(url, data=BODY) as response:
            await response.read()
            response.raise_for_status()

    async def ours() -> None:
        result = await client.send(CallbackRequest(url, BODY))
        if not result.is_success:
            raise SystemExit(f"A callback failed: {result.detail}")

    async def signed() -> None:
        headers = sign(secrets, "msg_1", int(time.time()), BODY)
        result = await client.send(CallbackRequest(url, BODY, headers))
        if not result.is_success:
            raise SystemExit(f"A callback failed: {result.detail}")

    return {"aiohttp, bare": bare, "callback": ours, "callback, signed": signed}


async def _rate(way: Way, seconds: float, concurrency: int) -> Turn:
    """Send for so long; each of the concurrent ones begins the next at once."""
    ends_at = time.perf_counter() + seconds
    done = 0

    async def again() -> None:
        nonlocal done
        while time.perf_counter() < ends_at:
            await way()
            done += 1

    began, cpu_began = time.perf_counter(), time.process_time()
    await asyncio.gather(*(again() for _ in range(concurrency)))
    rate = done / (time.perf_counter() - began)
    return Turn(rate, (time.process_time() - cpu_began) / done * 1e6)


def _table(rates: dict[int, dict[str, list[Turn]]], options: Namespace) -> Table:
    title = f"Callbacks of one process, {options.concurrency} at a time"
    header = ("way", "answers after", "per second", "p10", "p90", "CPU µs each", "CPU of bare")
    table = Table(title, header)
    for delay, ways in rates.items():
        bare = median(turn.cpu_us for turn in ways["aiohttp, bare"])
        for name, turns in ways.items():
            table.rows.append([name, f"{delay} ms", *_figures(turns, bare)])
            say(" ".join(table.rows[-1]))
    return table


def _figures(turns: list[Turn], bare: float) -> list[str]:
    rates = [turn.rate for turn in turns]
    cpu = median(turn.cpu_us for turn in turns)
    shown = (median(rates), percentile(rates, 10), percentile(rates, 90), cpu)
    return [*(f"{each:,.0f}" for each in shown), f"{cpu / bare:.2f}"]


def _machine() -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "load average": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "aiohttp": aiohttp.__version__,
        "body": f"{len(BODY)} bytes",
    }


if __name__ == "__main__":
    main()
