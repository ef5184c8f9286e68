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
        yield AsyncpgDriver(connection)
    finally:
        await connection.close()


async def schema() -> None:
    async with connected() as driver:
        await Queries(driver).install()


async def offer(sizes) -> None:
    async with connected() as driver:
        queries = Queries(driver)
        for _ in sizes:
            await queries.enqueue("noop", PAYLOAD)


async def bulk(sizes) -> None:
    async with connected() as driver:
        queries = Queries(driver)
        for size in sizes:
            await queries.enqueue(["noop"] * size, [PAYLOAD] * size, [0] * size)


async def pace(moments) -> None:
    async with connected() as driver:
        queries = Queries(driver)
        for moment in moments:
            await queries.enqueue("stamped", str(moment).encode())


async def work() -> None:
    async with connected() as driver:
        worker = PgQueuer(driver)

        @worker.entrypoint("noop")
        async def noop(job) -> None:
            """Do nothing."""

        @worker.entrypoint("stamped")
        async def stamped(job) -> None:
            protocol.stamp(float(job.payload))

        await worker.run(**protocol.OPTIONS)


if __name__ == "__main__":
    protocol.main(schema, offer, bulk, pace, work, run=uvloop.run)
