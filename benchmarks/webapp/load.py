"""POST as fast as the server takes it: ``python -m benchmarks.webapp.load URL …``."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import aiohttp

# The jobs of a bulk.
BULK: Final = 200
BODY = {"order": 4711, "items": [{"sku": "tea", "number": 2}], "note": "x" * 60}


def _job(name: str) -> dict[str, Any]:
    return {"topic": "benchmark", "jobId": name, "delay": 3600, "body": BODY}


def _bulk(name: str) -> list[dict[str, Any]]:
    return [_job(f"{name}-{number}") for number in range(BULK)]


def _notification(name: str) -> dict[str, Any]:
    return {
        "channel": "email", "to": f"{name}@example.org", "subject": "Your order",
        "body": "Dear Ada, thank you for your order. " * 3, "dedupeKey": name,
    }  # fmt: skip


def _kind_of(url: str) -> Callable[[str], Any]:
    if url.endswith(("notifications", "row-and-offer")):
        return _notification
    return _bulk if url.endswith("bulk") else _job


async def load(url: str, token: str, connections: int, seconds: float) -> list[float]:
    """Return how long each request took, in milliseconds; every answer must be a 202."""
    prefix, numbers, taken = f"job-{time.time_ns()}", count(), list[float]()
    made = _kind_of(url)
    until = time.perf_counter() + seconds
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    async def post(session: aiohttp.ClientSession) -> None:
        while (started_at := time.perf_counter()) < until:
            data = json.dumps(made(f"{prefix}-{next(numbers)}"))
            async with session.post(url, data=data) as response:
                await response.read()
                if response.status != 202:
                    raise SystemExit(f"{response.status}: {await response.text()}")
            taken.append((time.perf_counter() - started_at) * 1000)

    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        await asyncio.gather(*(post(session) for _ in range(connections)))
    return taken


if __name__ == "__main__":
    _, url, token, connections, seconds = sys.argv
    print(json.dumps(asyncio.run(load(url, token, int(connections), float(seconds)))))  # noqa: T201
