"""Chancy: ``push``, ``push_many``, a worker with one declared queue."""

from __future__ import annotations

import asyncio

import protocol
from chancy import Chancy, Queue, Worker, job


@job(queue="default")
async def noop(*, text: str) -> None:
    """Do nothing."""


@job(queue="default")
async def stamped(*, offered_at: float) -> None:
    protocol.stamp(offered_at)


async def schema() -> None:
    async with Chancy("postgresql://") as chancy:
        await chancy.migrate()


async def offer(count: int) -> float:
    each = noop.job.with_kwargs(text=protocol.TEXT)
    async with Chancy("postgresql://") as chancy:
        return await protocol.aone_by_one(count, lambda: chancy.push(each))


async def bulk(count: int) -> float:
    each = noop.job.with_kwargs(text=protocol.TEXT)

    async def push_many(chancy, size: int) -> None:
        async for _ in chancy.push_many([each] * size):
            continue

    async with Chancy("postgresql://") as chancy:
        return await protocol.ain_chunks(count, lambda size: push_many(chancy, size))


async def pace(count: int, rate: float) -> None:
    async with Chancy("postgresql://") as chancy:
        async for moment in protocol.apaced(count, rate):
            await chancy.push(stamped.job.with_kwargs(offered_at=moment))


async def work() -> None:
    async with Chancy("postgresql://") as chancy:
        await chancy.declare(Queue("default", **protocol.OPTIONS), upsert=True)
        async with Worker(chancy) as worker:
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    protocol.main(
        lambda: asyncio.run(schema()),
        lambda count: asyncio.run(offer(count)),
        lambda count: asyncio.run(bulk(count)),
        lambda count, rate: asyncio.run(pace(count, rate)),
        lambda: asyncio.run(work()),
    )
