"""Adding jobs that come at the same time in one transaction, as databases commit in groups."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS, Error

from delayed_queue.db.gathering import ThreadGathering
from delayed_queue.db.resilience import Tries, is_in_transaction
from delayed_queue.exceptions import DelayedQueueError
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


class Written(NamedTuple):
    """What came of writing a job with others; if it was not written, of which tries."""

    is_written: bool
    added: AddedRow | None = None
    tries: Tries | None = None


def write_together(place: Place, jobs: list[NewJob]) -> list[Written]:
    """Write all in one try, and return what came of each."""
    using, topic, if_exists = place
    tries = Tries(using)
    try:
        found = ensure_topic(topic, using=using)
        found = ensure_hosts(found, (job.host for job in jobs), using=using)
        tries.begin()
        rows = write_jobs(found, jobs, if_exists, using, timeout=TIMEOUT)
    except Error as error:
        tries.note(error)
        return [Written(False, tries=tries)] * len(jobs)
    # Each then meets it by itself, and answers as its caller is to be answered.
    except (DelayedQueueError, ValueError):
        rows = None
    if rows is None:
        return [Written(False)] * len(jobs)
    by_id = {row.key: row for row in rows}
    return [_written(by_id.get(job.job_id)) for job in jobs]


def _written(row: AddedRow | None) -> Written:
    # A row without a due time was not written, and is to be asked for again.
    return Written(row is None or row.scheduled_at is not None, row)


def settle(job: NewJob, written: Written, place: Place) -> AddedJob:
    """Return what came of the job, having written it alone if need be.

    What one of a batch meets, like an id that is held or an error, is not the others' matter.
    """
    using, _, if_exists = place
    if written.is_written:
        return outcome_of(job, written.added, if_exists, using)
    return add_alone(job, if_exists, using, written.tries)


def needs_database(written: Written, if_exists: IfExists) -> bool:
    """Return whether settle() asks the database."""
    return not written.is_written or (written.added is None and if_exists is not IfExists.FAIL)


def id_of(job: NewJob) -> str:
    """Return what no two jobs of a statement may share."""
    return job.job_id


gathered: Final = ThreadGathering(write_together, callers=WRITERS, most=BATCH, name=id_of)
# The threads that write stay with the parent, and one may have held the lock.
os.register_at_fork(after_in_child=gathered.forget)


def add_job_in_group(
    job: NewJob, *, if_exists: IfExists = IfExists.FAIL, using: str = DEFAULT_DB_ALIAS
) -> AddedJob:
    """Store the job as add_job() does, in one transaction with those of other threads."""
    if is_in_transaction(using):
        return add_job(job, if_exists=if_exists, using=using)
    place = (using, job.topic, if_exists)
    return settle(job, gathered.ask(place, job), place)
