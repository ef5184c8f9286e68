"""Offering a whole job or none of it: tasks stage their rows, the driver merges them once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa

from delayed_queue.codecs import channel_of
from delayed_queue.db.sql import NOTIFY
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.spark.copying import Columns, encode_rows
from delayed_queue.spark.drivers import PsycopgSession, Session
from delayed_queue.spark.ledger import DAY, claim_closing, settle
from delayed_queue.spark.links import Link
from delayed_queue.spark.offering import OFFER, Job, is_soon, jsonb
from delayed_queue.spark.offers import chunks, due_times, offers_of
from delayed_queue.spark.store.offering import (
    CLEAR_STAGE,
    COUNT_STAGED,
    MERGE_STAGE_IF_NOT_EXISTS,
    MERGE_STAGE_OR_UPDATE,
    PRUNE_STAGE,
)

STAGE: Final = "delayed_queue_offer_stage"
_BITE: Final = 10_000


def stage_all(job: Job, partition: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, str, bool]:
    """Stage the rows of a partition under an attempt id of their own.

    Returns how many they are, that id, and whether some are due soon. A chunk that has to be sent
    again is sent under the same id, so the attempt is not repeated in part: it fails as a whole.
    """
    attempt = str(uuid.uuid4())
    rows, soon = 0, False
    link = Link(job.options)
    try:
        for chunk in chunks(batches, job.options.chunk, job.options.chunkBytes):
            offers = offers_of(chunk, job.options.codec)
            staged = _staged(job, partition, attempt, rows, offers)
            link.once(OFFER, partial(_send, staged))
            soon = soon or is_soon(job, staged["dueAt"])
            rows += chunk.num_rows
    finally:
        link.close()
    return rows, attempt, soon


def _send(staged: Columns, session: PsycopgSession) -> None:
    session.copy((STAGE,), staged, encode_rows(staged))


def _staged(
    job: Job, partition: int, attempt: str, before: int, offers: pa.Table
) -> dict[str, Any]:
    return {
        "job": pa.scalar(job.key.job),
        "attempt": pa.scalar(attempt),
        "partition": pa.scalar(partition, pa.int32()),
        "position": pa.array(range(before, before + offers.num_rows), pa.int64()),
        "key": offers["key"],
        "payload": offers["payload"],
        "dueAt": due_times(offers, job.now),
        "headers": jsonb(offers["headers"]),
        "recordedAt": pa.scalar(job.now, pa.int64()),
    }


def merge_staged(session: Session, job: Job, attempts: list[str], rows: int, *, wake: bool) -> None:
    """Offer what the attempts have staged, close the job, and wake the workers.

    Nothing where the job is closed already: an earlier call has done all this.
    """
    closing = claim_closing(session, job.key, rows)
    if closing is None:
        return
    which: dict[str, Any] = {"job": job.key.job, "attempts": attempts}
    staged, most = session.fetch(COUNT_STAGED, which)[0]
    if staged != rows:
        raise ResourceUnavailable(
            f"Of {rows} rows that were staged {staged} are left: the server has crashed since, "
            "and what is staged does not outlive that. Nothing was offered; run the job again."
        )
    settle(session, closing, *_merged(session, job, which, most))
    session.fetch(CLEAR_STAGE, {"job": job.key.job})
    if wake and job.options.notify:
        session.fetch(NOTIFY, {"channel": channel_of(job.kind)})


def _merged(session: Session, job: Job, which: dict[str, Any], most: int) -> tuple[int, int]:
    is_upsert = job.options.mode == "upsert"
    statement = MERGE_STAGE_OR_UPDATE if is_upsert else MERGE_STAGE_IF_NOT_EXISTS
    created = updated = 0
    for turn in range(most if is_upsert else min(most, 1)):
        params = {**which, "kind": job.kind, "now": job.now, "turn": turn}
        more = session.fetch(statement, params)[0]
        created, updated = created + more[0], updated + more[1]
    return created, updated


def clear_stage(session: Session, job: Job) -> None:
    """Forget what the job has staged, and what others left behind long ago."""
    session.fetch(CLEAR_STAGE, {"job": job.key.job})
    age = job.options.ledgerDays * DAY
    session.fetch(PRUNE_STAGE, {"age": age, "limit": _BITE, "now": None})
