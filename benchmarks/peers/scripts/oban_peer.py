"""Oban for Python: ``enqueue``, ``enqueue_many``, an instance with one queue."""

from __future__ import annotations

import asyncio

import orjson
import protocol
import uvloop
from oban import Oban, worker
from oban.schema import install
from psycopg.types.json import set_json_dumps, set_json_loads

# What its own command line does before it starts.
set_json_dumps(orjson.dumps)
set_json_loads(orjson.loads)


@worker(queue="default")
class Noop:
    async def process(self, job) -> None:
        """Do nothing."""


@worker(queue="default")
class Stamped:
    async def process(self, job) -> None:
        protocol.stamp(job.args["offered_at"])


async def schema() -> None:
    pool = await Oban.create_pool("postgresql://")
    await install(pool)
    await pool.close()


async def offering(use):
    pool = await Oban.create_pool("postgresql://")
    async with Oban(pool=pool) as oban:
        seconds = await use(oban)
    await pool.close()
    return seconds


async def offer(count: int) -> float:
    return await offering(
        lambda oban: protocol.aone_by_one(
            count, lambda: oban.enqueue(Noop.new({"text": protocol.TEXT}))
        )
    )


async def bulk(count: int) -> float:
    def offer_many(oban, size: int):
        return oban.enqueue_many([Noop.new({"text": protocol.TEXT}) for _ in range(size)])

    return await offering(
        lambda oban: protocol.ain_chunks(count, lambda size: offer_many(oban, size))
    )


async def pace(count: int, rate: float) -> None:
    async def use(oban) -> None:
        async for moment in protocol.apaced(count, rate):
            await oban.enqueue(Stamped.new({"offered_at": moment}))

    await offering(use)


async def work() -> None:
    pool = await Oban.create_pool("postgresql://")
    async with Oban(pool=pool, queues={"default": protocol.OPTIONS["limit"]}):
        await asyncio.Event().wait()


if __name__ == "__main__":
    protocol.main(
        lambda: uvloop.run(schema()),
        lambda count: uvloop.run(offer(count)),
        lambda count: uvloop.run(bulk(count)),
        lambda count, rate: uvloop.run(pace(count, rate)),
        lambda: uvloop.run(work()),
    )
