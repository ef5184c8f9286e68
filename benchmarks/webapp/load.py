"""POST jobs as fast as the server takes them: ``python -m benchmarks.webapp.load URL …``."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from itertools import count

import aiohttp

BODY = {"order": 4711, "items": [{"sku": "tea", "number": 2}], "note": "x" * 60}


async def load(url: str, token: str, connections: int, seconds: float) -> list[float]:
    """Return how long each request took, in milliseconds; every answer must be a 202."""
    prefix, numbers, taken = f"job-{time.time_ns()}", count(), list[float]()
    until = time.perf_counter() + seconds
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    async def post(session: aiohttp.ClientSession) -> None:
        while (started_at := time.perf_counter()) < until:
            job = {
                "topic": "benchmark", "jobId": f"{prefix}-{next(numbers)}", "delay": 3600,
                "body": BODY,
            }  # fmt: skip
            async with session.post(url, data=json.dumps(job)) as response:
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
