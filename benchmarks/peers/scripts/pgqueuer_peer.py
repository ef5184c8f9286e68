"""PgQueuer over asyncpg and uvloop: ``enqueue``, ``run``."""

from __future__ import annotations

import contextlib

import asyncpg
import protocol
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

PAYLOAD = protocol.TEXT.encode()


@contextlib.asynccontextmanager
async def connected():
    connection = await asyncpg.connect()
    try:
        yield connection
    finally:
        await connection.close()


async def schema() -> None:
    async with connected() as connection:
        await Queries(AsyncpgDriver(connection)).install()


async def offer(count: int) -> float:
    async with connected() as connection:
        queries = Queries(AsyncpgDriver(connection))
        return await protocol.aone_by_one(count, lambda: queries.enqueue("noop", PAYLOAD))


async def bulk(count: int) -> float:
    async with connected() as connection:
        queries = Queries(AsyncpgDriver(connection))
        return await protocol.ain_chunks(
            count, lambda size: queries.enqueue(["noop"] * size, [PAYLOAD] * size, [0] * size)
        )


async def pace(count: int, rate: float) -> None:
    async with connected() as connection:
        queries = Queries(AsyncpgDriver(connection))
        async for moment in protocol.apaced(count, rate):
            await queries.enqueue("stamped", str(moment).encode())


async def work() -> None:
    async with connected() as connection:
        worker = PgQueuer(AsyncpgDriver(connection))

        @worker.entrypoint("noop")
        async def noop(job) -> None:
            """Do nothing."""

        @worker.entrypoint("stamped")
        async def stamped(job) -> None:
            protocol.stamp(float(job.payload))

        await worker.run(**protocol.OPTIONS)


if __name__ == "__main__":
    protocol.main(
        lambda: uvloop.run(schema()),
        lambda count: uvloop.run(offer(count)),
        lambda count: uvloop.run(bulk(count)),
        lambda count, rate: uvloop.run(pace(count, rate)),
        lambda: uvloop.run(work()),
    )
