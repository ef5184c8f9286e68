"""Callbacks of one process beside bare aiohttp: ``python -m benchmarks.callbacks``.

The receiver is a process of its own. The clients take turns in one process and one event loop.
"""

from __future__ import annotations

import asyncio
import multiprocessing
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

from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.rounds import spread

DELAYS_MS: Final = (0, 100)
BODY: Final = b'{"orderId": "4711", "state": "unpaid", "note": "' + b"x" * 200 + b'"}'
RESPONSE: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
WARM_UP_SECONDS: Final = 0.2
BARE: Final = "aiohttp, bare"
Send = Callable[[], Awaitable[None]]


class Turn(NamedTuple):
    """Callbacks a second, and the CPU time of each."""

    rate: float
    cpu_us: float


class Receiver(asyncio.Protocol):
    """Responds to each POST after a delay; does no more than it must, to be no limit."""

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
            loop.call_later(self.delay, self._transport.write, RESPONSE)


def _receive(ports: Connection) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for delay in DELAYS_MS:
            kind = type("Delayed", (Receiver,), {"delay": delay / 1000})
            server = await loop.create_server(kind, "127.0.0.1", 0, backlog=1024)
            ports.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(main())


@contextmanager
def listening(listen: Callable[[Connection], None], count: int) -> Iterator[list[int]]:
    """Run a listener in a process of its own; yield the ports that it sends."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=listen, args=(theirs,), daemon=True)
    process.start()
    try:
        yield [ours.recv() for _ in range(count)]
    finally:
        process.kill()
        process.join()


@contextmanager
def receiving() -> Iterator[dict[int, int]]:
    """Run a receiver; yield its port for each delay."""
    with listening(_receive, len(DELAYS_MS)) as ports:
        yield dict(zip(DELAYS_MS, ports, strict=True))


def main() -> None:
    """Measure bare aiohttp, our client, and our client with signatures, at each delay."""
    options = _options()
    apps = ["delayed_queue", "delayed_queue.http"]
    settings.configure(SECRET_KEY="benchmark" * 5, USE_TZ=True, INSTALLED_APPS=apps)
    django.setup()
    title = f"Callbacks of one process, {options.concurrency} at a time"
    header = ("client", "response after", "per second", "CPU each, µs", "of bare")
    report, table = Report(describe()), Table(title, header)
    with receiving() as ports:
        for delay, port in ports.items():
            found = asyncio.run(_measured(port, options))
            bare = median(turn.cpu_us for turn in found[BARE])
            for name, turns in found.items():
                cpu = median(turn.cpu_us for turn in turns)
                rates = spread([turn.rate for turn in turns])
                table.add(name, f"{delay} ms", rates, f"{cpu:.0f}", f"{cpu / bare:.2f}")
    report.tables.append(table)
    report.write(options)


def _options() -> Namespace:
    options = Options(".callbacks", __doc__).size("seconds", 1.0, 0.3, "seconds of a turn")
    options.size("rounds", 9, 2, "turns of each client")
    return options.size("concurrency", 100, 100, "callbacks at a time").parse()


async def _measured(port: int, options: Namespace) -> dict[str, list[Turn]]:
    async with AsyncExitStack() as stack:
        clients = await _clients(port, stack)
        turns: dict[str, list[Turn]] = {name: [] for name in clients}
        for number in range(options.rounds + 1):
            for name, send in clients.items():
                seconds = options.seconds if number else WARM_UP_SECONDS
                turn = await _turn(send, seconds, options.concurrency)
                turns[name] += [turn] if number else []
    return turns


async def _clients(port: int, stack: AsyncExitStack) -> dict[str, Send]:
    from delayed_queue.http.callbacks.calls import CallbackRequest, new_secret, sign
    from delayed_queue.http.callbacks.client import CallbackClient
    from delayed_queue.http.conf import CallbackSettings

    url, secrets = f"http://127.0.0.1:{port}/hook", [new_secret()]
    connector = aiohttp.TCPConnector(limit=0)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
    allowed = CallbackSettings(ALLOWED_NETWORKS=["127.0.0.1"], ALLOWED_PORTS=[port])
    client = CallbackClient(allowed)
    stack.push_async_callback(client.close)

    async def bare() -> None:
        async with session.post(url, data=BODY) as response:
            await response.read()
            response.raise_for_status()

    async def ours(headers: dict[str, str] | None = None) -> None:
        result = await client.send(CallbackRequest(url, BODY, headers or {}))
        if not result.is_success:
            raise SystemExit(f"A callback failed: {result.detail}")

    async def signed() -> None:
        await ours(dict(sign(secrets, "msg_1", int(time.time()), BODY)))

    return {BARE: bare, "callback": ours, "callback, signed": signed}


async def _turn(send: Send, seconds: float, concurrency: int) -> Turn:
    """Send for a time, always the same number at once."""
    ends_at, done = time.perf_counter() + seconds, 0

    async def repeat() -> None:
        nonlocal done
        while time.perf_counter() < ends_at:
            await send()
            done += 1

    began, cpu_began = time.perf_counter(), time.process_time()
    await asyncio.gather(*(repeat() for _ in range(concurrency)))
    rate = done / (time.perf_counter() - began)
    return Turn(rate, (time.process_time() - cpu_began) / done * 1e6)


if __name__ == "__main__":
    main()
