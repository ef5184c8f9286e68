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
async def noop(text: str, group: str = "") -> None:
    """Do nothing, or what takes so long."""
    if protocol.is_observed():
        await protocol.aobserve(group)


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
        return protocol.in_chunks(count, _locked if protocol.GROUPS else _free)


def _free(size: int) -> None:
    noop.batch_defer(*[{"text": protocol.TEXT}] * size)


def _locked(size: int) -> None:
    """Defer jobs with a lock each, of which a bulk call of its own knows one for all."""
    groups = [protocol.group() for _ in range(size)]
    given = [(each, {"text": protocol.TEXT, "group": each}) for each in groups]
    jobs = [noop.configure(lock=lock, task_kwargs=kwargs).job for lock, kwargs in given]
    app.job_manager.batch_defer_jobs(jobs=jobs)


def pace(count: int, rate: float) -> None:
    with app.open():
        for moment in protocol.paced(count, rate):
            stamped.defer(offered_at=moment)


async def awork() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=protocol.OPTIONS.get("concurrency", 1))


if __name__ == "__main__":
    protocol.main(schema, offer, bulk, pace, lambda: asyncio.run(awork()))
