"""The limit: claim, call a function for each row, acknowledge the claim; nothing else."""

from __future__ import annotations

import time

import ours_peer
import protocol
import psycopg

from benchmarks.bare import BareQueue, create_bare_table

IDLE_SECONDS = 0.05
PAYLOAD = protocol.TEXT.encode()


def connected() -> psycopg.Connection:
    return psycopg.connect("", autocommit=True)


def bare_queue() -> BareQueue:
    return BareQueue(connected(), "benchmark|bytes")


def schema() -> None:
    ours_peer.schema()
    create_bare_table(connected())


def offer(sizes) -> None:
    queue = bare_queue()
    for _ in sizes:
        queue.offer(protocol.key(), PAYLOAD)


def bulk(sizes) -> None:
    queue = bare_queue()
    for size in sizes:
        queue.copy([(protocol.key(), PAYLOAD) for _ in range(size)])


def handle(row) -> None:
    """Do nothing."""


def work() -> None:
    take = bare_queue().take(protocol.OPTIONS["batch"], handle)
    while True:
        if not take():
            time.sleep(IDLE_SECONDS)


if __name__ == "__main__":
    protocol.main(schema, offer, bulk, list, work)
