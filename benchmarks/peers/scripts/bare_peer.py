"""The limit: claim, call a function for each row, acknowledge the claim; nothing else."""

from __future__ import annotations

import itertools
import os
import time

import ours
import protocol
import psycopg

from benchmarks.bare import BareQueue
from benchmarks.database import BARE_TABLE, SAME_STORAGE

KIND = "benchmark|bytes"
PAYLOAD = protocol.TEXT.encode()
IDLE_SECONDS = 0.05


def connected() -> psycopg.Connection:
    return psycopg.connect("", autocommit=True)


def schema() -> None:
    ours.django_command("migrate", "--verbosity=0")
    with connected() as connection:
        connection.execute(BARE_TABLE)
        connection.execute(SAME_STORAGE)


def keys():
    start = f"{os.getpid()}-"
    return (start + str(number) for number in itertools.count())


def offer(count: int) -> float:
    with connected() as connection:
        queue, names = BareQueue(connection, KIND), keys()
        return protocol.one_by_one(count, lambda: queue.offer(next(names), PAYLOAD))


def bulk(count: int) -> float:
    with connected() as connection:
        queue, names = BareQueue(connection, KIND), keys()
        return protocol.in_chunks(
            count, lambda size: queue.copy([(next(names), PAYLOAD) for _ in range(size)])
        )


def handle(row) -> None:
    """Do nothing."""


def work() -> None:
    limit = protocol.OPTIONS["batch"]
    with connected() as connection:
        queue = BareQueue(connection, KIND)
        while True:
            lease_id, rows = queue.claim(limit)
            for row in rows:
                handle(row)
            if rows:
                queue.acknowledge_lease(lease_id)
            else:
                time.sleep(IDLE_SECONDS)


if __name__ == "__main__":
    protocol.main(schema, offer, bulk, lambda count, rate: None, work)
