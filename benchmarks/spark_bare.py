"""The limits of the data source: binary COPY, and bare lease and acknowledgement."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final
from uuid import uuid4

import psycopg

from delayed_queue.queue.store.settle import ACKNOWLEDGE_LEASE
from delayed_queue.spark.store.streaming import LEASE_DUE

KIND: Final = "benchmark|bytes"
CHUNK: Final = 20_000
CONNECTIONS: Final = 4
COPY: Final = """
COPY delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
) FROM STDIN (FORMAT BINARY)
"""


def encode(path: str) -> list[list[bytes]]:
    """Return the rows of Parquet files as binary COPY takes them, in chunks by connection.

    Encoded beforehand: the server's limit is measured, not Python's.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    chunks = [_encoded(table.slice(at, CHUNK)) for at in range(0, table.num_rows, CHUNK)]
    return [chunks[part::CONNECTIONS] for part in range(CONNECTIONS)]


def _encoded(piece: Any) -> bytes:
    now, kind = _field(int(time.time() * 1000).to_bytes(8, "big")), _field(KIND.encode())
    keys, payloads = (piece[name].to_pylist() for name in ("key", "payload"))
    rows = b"".join(
        b"\x00\x06" + _field(key.encode()) + kind + _field(payload) + 3 * now
        for key, payload in zip(keys, payloads, strict=True)
    )
    return b"PGCOPY\n\xff\r\n\x00" + bytes(8) + rows + b"\xff\xff"


def _field(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def copy_all(parts: list[list[bytes]], dsn: str) -> None:
    """Copy the parts by a connection each, a commit for each chunk."""

    def copy_part(part: list[bytes]) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
            for chunk in part:
                with cursor.copy(COPY) as copy:
                    copy.write(chunk)

    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(copy_part, parts))


def bare_drain(dsn: str, count: int) -> None:
    """Lease by four connections and acknowledge, as the stream does."""
    params = {"kind": KIND, "limit": 50_000, "lease": 600_000, "cutoff": None, "now": None}
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(CONNECTIONS))
        connections = [
            stack.enter_context(psycopg.connect(dsn, autocommit=True)) for _ in range(CONNECTIONS)
        ]
        while count > 0:
            lease = {"lease_id": uuid4().hex}

            def take(connection: psycopg.Connection[Any], lease: Any = lease) -> int:
                row = connection.execute(LEASE_DUE, {**params, **lease}).fetchone()
                return int(row[0]) if row else 0

            count -= sum(pool.map(take, connections))
            connections[0].execute(ACKNOWLEDGE_LEASE, lease)
