"""Adding jobs that come at the same time in one transaction, as databases commit in groups.

While one thread writes, the jobs of others gather, and the next one writes them all. Nobody waits
for others: a job that comes alone is written at once.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error

from delayed_queue.db.resilience import Tries, is_in_transaction
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.http.jobs.adding import BATCH, add_alone, add_job, outcome_of, write_jobs
from delayed_queue.http.jobs.catalogue import ensure_hosts, ensure_topic
from delayed_queue.http.jobs.jobs import AddedJob, IfExists, NewJob
from delayed_queue.http.store.topics import AddedRow

# How long those who came together wait for an id that somebody else holds, in milliseconds; then
# each waits for its own.
TIMEOUT: Final = 100
# How many threads write jobs of a topic at a time. With one, the few threads of a server would
# spend their time in waiting for the disk in turns.
WRITERS: Final = 2

Place = tuple[str, str, IfExists]


class Entry:
    """A job in a line, and what came of writing it with others."""

    __slots__ = ("added", "is_written", "job", "tries")

    def __init__(self, job: NewJob) -> None:
        self.job = job
        self.is_written = False
        self.added: AddedRow | None = None
        self.tries: Tries | None = None


E = TypeVar("E", bound=Entry)


def write_together(batch: Sequence[Entry], place: Place) -> None:
    """Write the jobs of all in one try, and note what came of each; nothing if it failed."""
    using, topic, if_exists = place
    tries = Tries(using)
    try:
        jobs = [each.job for each in batch]
        found = ensure_topic(topic, using=using)
        found = ensure_hosts(found, (job.host for job in jobs), using=using)
        tries.begin()
        rows = write_jobs(found, jobs, if_exists, using, timeout=TIMEOUT)
    except ResourceUnavailable:
        return
    except Error as error:
        tries.note(error)
        for each in batch:
            each.tries = tries
        return
    if rows is not None:
        by_id = {row.key: row for row in rows}
        for each in batch:
            each.added = by_id.get(each.job.job_id)
            # A row without a due time was not written, and is to be asked for again.
            each.is_written = each.added is None or each.added.scheduled_at is not None


def settle(entry: Entry, place: Place) -> AddedJob:
    """Return what came of the job, having written it alone if need be.

    What one of a batch meets, like an id that is held or an error, is not the others' matter.
    """
    using, _, if_exists = place
    if entry.is_written:
        return outcome_of(entry.job, entry.added, if_exists, using)
    return add_alone(entry.job, if_exists, using, entry.tries)


def needs_database(entry: Entry, if_exists: IfExists) -> bool:
    """Return whether settle() asks the database."""
    return not entry.is_written or (entry.added is None and if_exists is not IfExists.FAIL)


def first_of(line: deque[E]) -> list[E]:
    """Take from the line what one statement can write: jobs with distinct ids."""
    batch: dict[str, E] = {}
    while line and len(batch) < BATCH and line[0].job.job_id not in batch:
        entry = line.popleft()
        batch[entry.job.job_id] = entry
    return list(batch.values())


class _Threads(Entry):
    """The job of a thread, which waits until others have written it or it is to write."""

    __slots__ = ("_turn", "batch")

    def __init__(self, job: NewJob) -> None:
        super().__init__(job)
        self.batch: list[_Threads] = []
        self._turn = threading.Lock()
        self._turn.acquire()

    def wait(self) -> None:
        self._turn.acquire()

    def go_on(self) -> None:
        self._turn.release()


class _Line:
    """The callers that wait while as many threads as allowed are writing."""

    def __init__(self) -> None:
        self.writers = 0
        self.waiting: deque[_Threads] = deque()


class _Lines:
    """The line of each place; none where nobody writes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Place, _Line] = {}

    def waiting(self, place: Place) -> int:
        """Return how many wait in the line."""
        with self._lock:
            return len(self._lines[place].waiting) if place in self._lines else 0

    def join(self, entry: _Threads, place: Place) -> bool:
        """Return whether the thread of the entry writes at once."""
        with self._lock:
            line = self._lines.setdefault(place, _Line())
            if line.writers < WRITERS:
                line.writers += 1
                entry.batch = [entry]
                return True
            line.waiting.append(entry)
            return False

    def pass_on(self, place: Place) -> None:
        """Have the first of those who wait write for as many as it can."""
        with self._lock:
            line = self._lines[place]
            batch = first_of(line.waiting)
            if not batch:
                line.writers -= 1
                if not line.writers:
                    del self._lines[place]
                return
        batch[0].batch = batch
        batch[0].go_on()


_lines: Final = _Lines()
# The threads that write stay with the parent, and one may have held the lock.
os.register_at_fork(after_in_child=_lines.reset)


def add_job_in_group(
    job: NewJob, *, if_exists: IfExists = IfExists.FAIL, using: str = DEFAULT_DB_ALIAS
) -> AddedJob:
    """Store the job as add_job() does, in one transaction with those of other threads."""
    if is_in_transaction(using):
        return add_job(job, if_exists=if_exists, using=using)
    entry, place = _Threads(job), (using, job.topic, if_exists)
    if not _lines.join(entry, place):
        entry.wait()
    if entry.batch:
        _write(entry.batch, place)
    return settle(entry, place)


def _write(batch: list[_Threads], place: Place) -> None:
    try:
        write_together(batch, place)
    finally:
        _lines.pass_on(place)
        for each in batch[1:]:
            each.go_on()
