"""Procrastinate: ``defer``, ``batch_defer``, ``run_worker``."""

from __future__ import annotations

import sys

import procrastinate
import protocol

# Its worker is asynchronous; a producer is faster over the synchronous connector.
IS_WORKER = "work" in sys.argv
connector = procrastinate.PsycopgConnector if IS_WORKER else procrastinate.SyncPsycopgConnector
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


def offer(sizes) -> None:
    with app.open():
        for _ in sizes:
            noop.defer(text=protocol.TEXT)


def bulk(sizes) -> None:
    with app.open():
        for size in sizes:
            noop.batch_defer(*[{"text": protocol.TEXT}] * size)


def pace(moments) -> None:
    with app.open():
        for moment in moments:
            stamped.defer(offered_at=moment)


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=protocol.OPTIONS.get("concurrency", 1))


if __name__ == "__main__":
    protocol.main(schema, offer, bulk, pace, work)
