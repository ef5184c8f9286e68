"""POST as fast as a server accepts: ``python -m benchmarks.webapp.load URL TOKEN …``."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import aiohttp

BODY: Final = {"order": 4711, "items": [{"sku": "tea", "number": 2}], "note": "x" * 60}


def job(name: str) -> dict[str, Any]:
    return {"topic": "benchmark", "jobId": name, "delay": 3600, "body": BODY}


def notification(name: str) -> dict[str, Any]:
    return {
        "channel": "email", "to": f"{name}@example.org", "subject": "Your order",
        "body": "Dear Ada, thank you for your order. " * 3, "dedupeKey": name,
    }  # fmt: skip


def body_for(url: str) -> Callable[[str], str]:
    """Return a function that returns the body of a request with a unique name."""
    make = notification if url.endswith(("notifications", "row-and-offer")) else job
    return lambda name: json.dumps(make(name))


async def load(url: str, token: str, connections: int, seconds: float) -> list[float]:
    """Return the milliseconds of each request; every status must be 202."""
    prefix, numbers, spent, body = f"job-{time.time_ns()}", count(), list[float](), body_for(url)
    until = time.perf_counter() + seconds
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    async def post(session: aiohttp.ClientSession) -> None:
        while (started_at := time.perf_counter()) < until:
            data = body(f"{prefix}-{next(numbers)}")
            async with session.post(url, data=data) as response:
                await response.read()
                if response.status != 202:
                    raise SystemExit(f"{response.status}: {await response.text()}")
            spent.append((time.perf_counter() - started_at) * 1000)

    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        await asyncio.gather(*(post(session) for _ in range(connections)))
    return spent


if __name__ == "__main__":
    _, url, token, connections, seconds = sys.argv
    print(json.dumps(asyncio.run(load(url, token, int(connections), float(seconds)))))  # noqa: T201
