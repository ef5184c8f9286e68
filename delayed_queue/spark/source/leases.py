"""The leases of a stream, whose its checkpoint and files are, and a queue's drain to its end."""

from __future__ import annotations

import json
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from delayed_queue.db.sql import row_of, value_of
from delayed_queue.exceptions import InvalidConfiguration, ResourceUnavailable
from delayed_queue.queue.store.settle import ACKNOWLEDGE_LEASE, RELEASE_LEASES
from delayed_queue.spark.database import Connection, Link, fetch, shares
from delayed_queue.spark.source.members import remove_members
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.source.queues import start_of
from delayed_queue.spark.store.streaming import (
    LEASE_DUE,
    LEASED_CUTS,
    RENEW_LEASE,
    TAKE_OVER_LEASE,
    WHICH_DATABASE,
    CutsRow,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Owner(NamedTuple):
    """A kind, and the name of its database."""

    kind: str
    database: str


def owner_of(kind: str, connection: Connection) -> Owner:
    """Return the owner of what is written of the kind over this connection."""
    return Owner(kind, value_of(fetch(connection, WHICH_DATABASE, {})))


def check_offset(offset: Mapping[str, Any], owner: Owner) -> None:
    """Raise InvalidConfiguration if the offset was logged by a stream of another queue.

    Its lease holds messages of that queue, which this stream must not read or acknowledge.
    """
    kind, database = offset.get("kind"), offset.get("database", owner.database)
    if (kind, database) != owner:
        raise InvalidConfiguration(
            f"The checkpoint is of the queue {kind!r} of the database {database!r}; a stream of "
            f"{owner.kind!r} of the database {owner.database!r} cannot go on with it. "
            "Nothing was leased. Give each queue of each database a checkpoint of its own."
        )


# A second connection gains nothing below N messages.
_WORTH_SHARING: Final = 5_000
# A lease is renewed after this fraction of its time; the renewer checks after the second fraction.
# Renewing rewrites every row, so a batch that ends before that is never renewed.
_RENEWED_AFTER: Final = 0.5
_LOOKED_AFTER: Final = 0.1
# Seconds that close() waits for a running renewal.
_TIMEOUT: Final = 30.0


class Held(NamedTuple):
    """When a lease was taken or renewed last, on this process's clock; its number of messages."""

    renewed_at: float
    number: int


class Leases:
    """The leases of one stream; used by one thread, beside two of its own.

    A lease that was taken ahead, for the batch after the next, counts as held: it is renewed too.
    Its id is in the offset of the batch before it, so that a process that comes after finds it.
    """

    def __init__(self, options: Options, owner: Owner) -> None:
        self._options = options
        self.owner = owner
        self._link = Link(options)
        self._claimers = [Link(options) for _ in range(options.leaseConnections)]
        self._pool = ThreadPoolExecutor(
            options.leaseConnections + 1, thread_name_prefix="delayed-queue-lease"
        )
        self._cutoff: int | None = None
        self.ahead: Future[str | None] | None = None
        self._is_first = True
        self._is_backlog = False
        # Acknowledging and renewing the same rows at the same time would be a deadlock.
        self._turn = threading.Lock()
        self._held: dict[str, Held] = {}
        self._stopped = threading.Event()
        self._renewer = threading.Thread(
            target=self._keep, name="delayed-queue-renewer", daemon=True
        )
        self._renewer.start()

    def stop_at_now(self) -> None:
        """From here on take only what is due now, on the database's clock.

        Raises InvalidConfiguration where rules hold that back, and the stream would end at once.
        """
        kind = self._options.required_kind
        self._cutoff = self._link.repeat("The start", lambda connection: start_of(connection, kind))

    def take(self, limit: int, foreseen: str = "") -> str | None:
        """Lease up to ``limit`` of the earliest due messages; return None if none is due.

        First comes what was leased ahead: by this process, or by the one before it, under the id
        that was foreseen.
        """
        lease_id = self._taken_ahead(foreseen) or self._take(limit, str(uuid.uuid4()))
        self._is_backlog = lease_id is not None and self._held[lease_id].number >= limit
        return lease_id

    def look_ahead(self, limit: int) -> str:
        """Begin to lease the batch after the one that was taken; return its id, or "" for none.

        Only where that one was full: a queue without a backlog has nothing to be ahead of.
        """
        if not self._options.prefetch or not self._is_backlog:
            return ""
        lease_id = str(uuid.uuid4())
        self.ahead = self._pool.submit(self._take, limit, lease_id)
        return lease_id

    def _taken_ahead(self, foreseen: str) -> str | None:
        ahead, self.ahead = self.ahead, None
        is_first, self._is_first = self._is_first, False
        if ahead is not None:
            return ahead.result()
        return self._adopt(foreseen) if is_first and foreseen else None

    def _adopt(self, lease_id: str) -> str | None:
        """Take what an earlier process had leased ahead, under a new id.

        Under the old one its last statement, if it is still at work, may yet lease more.
        """
        ours = str(uuid.uuid4())
        with self._turn:
            found = self.take_over(ours, [lease_id, ours], deliveries=0)
        return self._taken(ours, found)

    def _take(self, limit: int, lease_id: str) -> str | None:
        """Lease under a new id; no task has read messages under the id of a failed try."""
        with self._turn:
            self._hold(lease_id, limit)
        try:
            claims = [
                self._pool.submit(self._claim, link, part, lease_id)
                for link, part in zip(self._claimers, self._parts(limit), strict=False)
            ]
            found = sum(each.result() for each in claims)
        except ResourceUnavailable:
            self.give_back(lease_id)
            raise
        return self._taken(lease_id, found)

    def _taken(self, lease_id: str, number: int) -> str | None:
        """Return the id of a lease that holds messages; forget one that holds none."""
        with self._turn:
            held = self._held.pop(lease_id)
            if number:
                self._held[lease_id] = held._replace(number=number)
        return lease_id if number else None

    def _hold(self, lease_id: str, number: int) -> None:
        self._held[lease_id] = Held(time.monotonic(), number)

    def _parts(self, limit: int) -> list[int]:
        count = 1 if limit < _WORTH_SHARING else len(self._claimers)
        return [limit // count + (each < limit % count) for each in range(count)]

    def _claim(self, link: Link, limit: int, lease_id: str) -> int:
        params = {
            "kind": self._options.required_kind,
            "limit": limit,
            "lease_id": lease_id,
            "lease": self._options.lease,
            "cutoff": self._cutoff,
            "now": None,
        }
        return int(value_of(link.fetch("The lease", LEASE_DUE, params)))

    def cuts_of(self, lease_id: str) -> CutsRow:
        """Return where the batch is cut into parts for its tasks, on the database's clock.

        A lease of an earlier process is taken over: what is left of it is renewed at once, and
        is one delivery more, for it may be what has ended that process.
        """
        with self._turn:
            if lease_id not in self._held:
                self.take_over(lease_id, [lease_id], deliveries=1)
            number = self._held[lease_id].number
        parts = min(self._options.partitions, max(number // self._options.rowsPerTask, 1))
        params = {"lease_id": lease_id, "shares": shares(parts), "now": None}
        found = row_of(CutsRow, self._link.fetch("The query of the lease", LEASED_CUTS, params))
        # Tasks do not read what has expired by now.
        self._link.repeat(
            "The expiry", lambda connection: remove_members(connection, lease_id, found.now)
        )
        return found

    def take_over(self, lease_id: str, lease_ids: list[str], *, deliveries: int) -> int:
        """Take over what is under earlier leases; return how many messages that is."""
        params = {
            "lease_id": lease_id, "lease_ids": lease_ids, "deliveries": deliveries,
            "kind": self._options.required_kind, "lease": self._options.lease, "now": None,
        }  # fmt: skip
        rows = self._link.fetch("The query of an earlier lease", TAKE_OVER_LEASE, params)
        number = int(value_of(rows))
        self._hold(lease_id, number)
        return number

    def acknowledge(self, lease_id: str) -> None:
        """Delete what is still under the lease; doing it again changes nothing."""
        if not lease_id:
            return
        with self._turn:
            _acknowledge(self._link, lease_id)
            self._held.pop(lease_id, None)

    def give_back(self, lease_id: str) -> None:
        """Release a lease whose messages no task has read, if the database responds."""
        with self._turn:
            self._held.pop(lease_id, None)
        # A separate connection: this may be the thread that leases ahead.
        with closing(Link(self._options)) as link, suppress(ResourceUnavailable):
            _give_back(link, [lease_id])

    def _keep(self) -> None:
        """Renew what is held, in a thread of its own, until the process ends."""
        with closing(Link(self._options)) as link:
            while not self._stopped.wait(self._options.lease / 1000 * _LOOKED_AFTER):
                with self._turn:
                    for lease_id in self._aged():
                        # The next round tries again; and a lease that ran out only means that
                        # others may take its messages, which the batch then does not delete.
                        with suppress(ResourceUnavailable):
                            self._renew(link, lease_id)

    def _aged(self) -> list[str]:
        oldest = time.monotonic() - self._options.lease / 1000 * _RENEWED_AFTER
        return [lease_id for lease_id, held in self._held.items() if held.renewed_at <= oldest]

    def _renew(self, link: Link, lease_id: str) -> None:
        params = {"lease_id": lease_id, "lease": self._options.lease, "now": None}
        link.fetch("The renewal", RENEW_LEASE, params)
        self._hold(lease_id, self._held[lease_id].number)

    def close(self) -> None:
        """End the threads and the connections; the leases run out by themselves."""
        self._stopped.set()
        # Not before they have ended: one that is at work would connect anew.
        self._pool.shutdown(cancel_futures=True)
        self._renewer.join(_TIMEOUT)
        self._link.close()
        for each in self._claimers:
            each.close()


def drain(writer: DataStreamWriter, checkpoint: str) -> StreamingQuery:
    """Run the stream until what was due when it began is handled; return the finished query.

    ``checkpoint`` is its checkpoint location. The last batch is always acknowledged, also one that
    an earlier run had finished before it was stopped. Raises the error of the query.

    >>> stream = spark.readStream.format("delayed_queue").option("queue", "orders").load()
    >>> drain(stream.writeStream.format("parquet").option("path", "lake"), "lake/_checkpoint")
    """
    from pyspark.sql import SparkSession

    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    is_done = False
    try:
        query.awaitTermination()
        is_done = True
    finally:
        # A query that is done planned one more batch, which acknowledged the last one.
        if not is_done:
            query.stop()
            acknowledge_checkpoint(SparkSession.active(), checkpoint)
    return query


def acknowledge_checkpoint(spark: SparkSession, checkpoint: str) -> int:
    """Acknowledge the last finished batch of the checkpoint; return the number of leases.

    For a stream that was stopped: Spark reports a batch to the source with the next one, so it
    never reports the last one. Messages that were leased ahead are released. Without a finished
    batch this does nothing.
    """
    done, logged = (_numbers(spark, f"{checkpoint}/{name}") for name in ("commits", "offsets"))
    wanted = {max(numbers) for numbers in (done, logged) if numbers}
    offsets = {number: _offsets(spark, f"{checkpoint}/offsets/{number}") for number in wanted}
    leases = [each["lock"] for each in offsets[max(done)] if each["lock"]] if done else []
    ahead = [each["next"] for each in offsets[max(logged)] if each["next"]] if logged else []
    if leases or ahead:
        _settle(leases, ahead)
    return len(leases)


def is_started(spark: SparkSession, checkpoint: str, owner: Owner) -> bool:
    """Return whether a stream has logged a batch in the checkpoint; refuse another queue's."""
    logged = _numbers(spark, f"{checkpoint}/offsets")
    for each in _offsets(spark, f"{checkpoint}/offsets/{max(logged)}") if logged else ():
        check_offset(each, owner)
    return bool(logged)


def _settle(leases: list[str], ahead: list[str]) -> None:
    with closing(Link(Options())) as link:
        for lease_id in leases:
            _acknowledge(link, lease_id)
        if ahead:
            _give_back(link, ahead)


def _acknowledge(link: Link, lease_id: str) -> None:
    def work(connection: Connection) -> None:
        remove_members(connection, lease_id)
        fetch(connection, ACKNOWLEDGE_LEASE, {"lease_id": lease_id})

    link.repeat("The acknowledgement", work)


def _give_back(link: Link, lease_ids: list[str]) -> None:
    params = {"lease_ids": lease_ids, "ids": [], "now": None}
    link.fetch("Giving back", RELEASE_LEASES, params)


def _numbers(spark: SparkSession, directory: str) -> list[int]:
    from pyspark.errors import AnalysisException

    try:
        # By Spark, because a checkpoint may be in any file system that it knows; without a job.
        paths = spark.read.text(directory).inputFiles()
    except AnalysisException:  # there is none yet
        return []
    last = (path.rpartition("/")[2] for path in paths)
    return [int(name) for name in last if name.isdigit()]


def _offsets(spark: SparkSession, path: str) -> list[dict[str, Any]]:
    """Return ours in an offset file: a version, metadata, then a line for each source."""
    rows = [row[0] for row in spark.read.text(path).collect()]
    found = [json.loads(row) for row in rows if row.startswith("{")]
    return [each for each in found if {"n", "lock", "next", "kind"} <= each.keys()]
