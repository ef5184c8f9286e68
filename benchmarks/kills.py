"""Limits of groups while worker processes are killed: ``python -m benchmarks.kills``.

Half of the messages are in a queue of two of a group at a time, half in one in order. A trigger
looks at each lease as it is given, and counts what contradicts the limits.
"""

from __future__ import annotations

import random
import sys
import time
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import Any, Final

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.database import PAYLOAD, benchmark_database, embedded_server
from benchmarks.running import Program, RunningWorker, working

AT_A_TIME: Final = 2
LIMITED: Final = "limited"
ORDERED: Final = "ordered"
_FILL: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", "group"
)
SELECT 'key-' || n, %(kind)s, %(payload)s, n, n, n, 'group-' || n %% %(groups)s::integer
FROM generate_series(1, %(count)s) AS n
"""
# Behind the statement that leases, with a snapshot of its own: it sees each lease that was
# committed until then, and those of the statement. In order, nothing is leased beside what was
# begun or came before.
_REFEREE: Final = """
CREATE TABLE verdicts (leases bigint NOT NULL, most bigint NOT NULL, violations bigint NOT NULL);
CREATE FUNCTION referee() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    now bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
BEGIN
    INSERT INTO verdicts
    SELECT sum(own.leases), max(held.live), sum(
        CASE WHEN held.live > own.most THEN 1 ELSE 0 END
        + CASE WHEN own.most = 1 AND others.are_before THEN 1 ELSE 0 END
    )
    FROM (
        SELECT "pKind" AS kind, "group" AS name, count(*) AS leases, max(id) AS id,
            max("scheduledAtInitially") AS initially,
            CASE WHEN "pKind" LIKE 'ordered|%' THEN 1 ELSE 2 END AS most
        FROM fresh
        WHERE "lockUuid" IS NOT NULL AND "scheduledAt" > now
        GROUP BY "pKind", "group"
    ) AS own
    CROSS JOIN LATERAL (
        SELECT count(*) AS live
        FROM delayed_queue
        WHERE "pKind" = own.kind AND "group" = own.name
            AND "lockUuid" IS NOT NULL AND "scheduledAt" > now
    ) AS held
    CROSS JOIN LATERAL (
        SELECT EXISTS (
            SELECT FROM delayed_queue
            WHERE "pKind" = own.kind AND "group" = own.name AND id <> own.id
                AND "scheduledAt" <= own.initially
        ) OR EXISTS (
            SELECT FROM delayed_queue
            WHERE "pKind" = own.kind AND "group" = own.name AND id <> own.id
                AND "lockUuid" IS NOT NULL
        ) OR EXISTS (
            SELECT FROM delayed_queue
            WHERE "pKind" = own.kind AND "group" = own.name AND id <> own.id
                AND "lockUuid" IS NULL AND "scheduledAt" > "scheduledAtInitially"
        ) AS are_before
    ) AS others
    HAVING count(*) > 0;
    RETURN NULL;
END $$;
CREATE TRIGGER referee AFTER UPDATE ON delayed_queue REFERENCING NEW TABLE AS fresh
FOR EACH STATEMENT EXECUTE FUNCTION referee();
"""
_VERDICT: Final = """
SELECT coalesce(sum(leases), 0), coalesce(max(most), 0), coalesce(sum(violations), 0) FROM verdicts
"""


def main() -> None:
    """Drain both queues, killing a process every now and then, and tell what was seen."""
    options = _options()
    server = embedded_server()
    with benchmark_database(server) as connection:
        _prepare(connection, options)
        conninfo = make_conninfo(server, dbname=connection.info.dbname)
        program = Program(conninfo, switches=("BENCHMARK_GROUPS",))
        queues = ("--queue", LIMITED, "--queue", ORDERED)
        started_at = time.monotonic()
        with working(program, *queues, "--processes", str(options.processes)) as worker:
            kills = _drained(connection, worker, options)
        _tell(connection, options, kills, time.monotonic() - started_at)


def _options() -> Namespace:
    parser = ArgumentParser("python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between kills, about")
    parser.add_argument("--seconds", type=float, default=3600.0, help="then it ends, done or not")
    return parser.parse_args()


def _prepare(connection: psycopg.Connection[Any], options: Namespace) -> None:
    from delayed_queue import DelayedQueue, Groups

    limits = {LIMITED: Groups(concurrency=AT_A_TIME), ORDERED: Groups(order="fifo")}
    for name, groups in limits.items():
        queue = DelayedQueue(name, codec="bytes")
        queue.groups.set(groups)
        params = {"kind": queue.kind, "payload": PAYLOAD, "groups": options.groups // 2}
        connection.execute(_FILL, {**params, "count": options.messages // 2})
    connection.execute("VACUUM ANALYZE delayed_queue")
    connection.execute(_REFEREE)


def _drained(connection: psycopg.Connection[Any], worker: RunningWorker, options: Namespace) -> int:
    kills, until = 0, time.monotonic() + options.seconds
    while time.monotonic() < until and _one(connection, "SELECT EXISTS (TABLE delayed_queue)"):
        time.sleep(options.pause * random.uniform(0.5, 1.5))  # noqa: S311
        processes = worker.tree()[1:]
        if processes:
            with suppress(psutil.NoSuchProcess):
                random.choice(processes).kill()  # noqa: S311
                kills += 1
        if worker.process.poll() is not None:
            raise RuntimeError(worker.log.read_text(errors="replace")[-2000:])
    return kills


def _tell(
    connection: psycopg.Connection[Any], options: Namespace, kills: int, seconds: float
) -> None:
    leases, most, violations = connection.execute(_VERDICT).fetchone() or (0, 0, 0)
    left = _one(connection, "SELECT count(*) FROM delayed_queue")
    dead = _one(connection, "SELECT count(*) FROM delayed_queue_dead_letter")
    done = options.messages - left - dead
    sys.stdout.write(
        f"{done:,} of {options.messages:,} messages in {seconds:.0f} s, {left:,} left, {dead:,} "
        f"dead; {kills:,} kills; {leases:,} leases, at most {most} of a group at a time; "
        f"{violations:,} violations\n"
    )


def _one(connection: psycopg.Connection[Any], query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None


if __name__ == "__main__":
    main()
