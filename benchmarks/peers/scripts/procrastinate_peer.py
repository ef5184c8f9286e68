"""Procrastinate: ``defer``, ``batch_defer``, ``run_worker``."""

from __future__ import annotations

import asyncio
import sys

import procrastinate
import protocol

# The worker is asynchronous; a producer is faster over the synchronous connector.
WORKS = "work" in sys.argv
connector = procrastinate.PsycopgConnector if WORKS else procrastinate.SyncPsycopgConnector
app = procrastinate.App(connector=connector(conninfo=""))


@app.task(name="noop")
async def noop(text: str) -> None:
    """Do nothing."""


@app.task(name="stamped")
async def stamped(offered_at: float) -> None:
    protocol.stamp(offered_at)


def schema() -> None:
    with app.open():
        app.schema_manager.apply_schema()


def offer(count: int) -> float:
    with app.open():
        return protocol.one_by_one(count, lambda: noop.defer(text=protocol.TEXT))


def bulk(count: int) -> float:
    with app.open():
        return protocol.in_chunks(
            count, lambda size: noop.batch_defer(*[{"text": protocol.TEXT}] * size)
        )


def pace(count: int, rate: float) -> None:
    with app.open():
        for moment in protocol.paced(count, rate):
            stamped.defer(offered_at=moment)


async def awork() -> None:
    async with app.open_async():
        await app.run_worker_async(**protocol.OPTIONS)


if __name__ == "__main__":
    protocol.main(schema, offer, bulk, pace, lambda: asyncio.run(awork()))
