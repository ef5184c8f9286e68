"""Adding jobs from an event loop: one thread writes, and all that came meanwhile in one go."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from delayed_queue.http.api.threads import in_thread
from delayed_queue.http.jobs.grouping import (
    Entry,
    Place,
    first_of,
    needs_database,
    settle,
    write_together,
)
from delayed_queue.http.jobs.jobs import AddedJob, IfExists, NewJob


class _Requests(Entry):
    """The job of a request, which waits for ``done``."""

    __slots__ = ("done",)

    def __init__(self, job: NewJob, done: asyncio.Future[None]) -> None:
        super().__init__(job)
        self.done = done


class _Line:
    """The callers that wait while jobs of a place are written, and the task that writes them."""

    __slots__ = ("task", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Requests] = deque()
        self.task: asyncio.Task[None] | None = None


# No line where nothing is written. Only the thread of its event loop touches one.
_lines: Final[dict[tuple[asyncio.AbstractEventLoop, Place], _Line]] = {}


async def add_in_group(job: NewJob, if_exists: IfExists, using: str) -> AddedJob:
    """Store the job as ``topics.add_job_in_group`` does; also when the caller is cancelled."""
    loop, place = asyncio.get_running_loop(), (using, job.topic, if_exists)
    entry = _Requests(job, loop.create_future())
    line = _lines.get((loop, place))
    if line is None:
        line = _lines[loop, place] = _Line()
        line.task = loop.create_task(_write_all(line, loop, place))
    line.waiting.append(entry)
    await entry.done
    if needs_database(entry, if_exists):
        return await in_thread(settle, entry, place)
    return settle(entry, place)


async def _write_all(line: _Line, loop: asyncio.AbstractEventLoop, place: Place) -> None:
    try:
        while line.waiting:
            await _write(first_of(line.waiting), place)
    finally:
        del _lines[loop, place]
        # Only if the loop ends under it: then whoever still waits is to be told, too.
        for each in line.waiting:
            each.done.cancel()


async def _write(batch: list[_Requests], place: Place) -> None:
    try:
        # What it raises each then meets by itself, and answers as its caller is to be answered.
        await asyncio.gather(in_thread(write_together, batch, place), return_exceptions=True)
    finally:
        for each in batch:
            if not each.done.done():
                each.done.set_result(None)
