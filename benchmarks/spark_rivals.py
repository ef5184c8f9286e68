"""What the data source is measured against: binary COPY, and bare lease and acknowledgement."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import uuid4

import psycopg

from delayed_queue.queue.store.settle import ACKNOWLEDGE_LEASE
from delayed_queue.spark.store.streaming import LEASE_DUE

KIND: Final = "benchmark|bytes"
CHUNK: Final = 20_000
CONNECTIONS: Final = 4
_COPY: Final = """
COPY delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
) FROM STDIN (FORMAT BINARY)
"""


def encode(path: str, parts: int) -> list[list[list[bytes]]]:
    """Return the rows as binary COPY takes them, in chunks, for each of the connections.

    Encoded beforehand: it is the server's limit that is measured, not Python's.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    pieces = [table.slice(at, CHUNK) for at in range(0, table.num_rows, CHUNK)]
    encoded = [_encoded(piece) for piece in pieces]
    return [encoded[part::parts] for part in range(parts)]


def _encoded(piece: Any) -> list[bytes]:
    now = int(time.time() * 1000).to_bytes(8, "big")
    kind = _field(KIND.encode())
    tail = 3 * _field(now)
    head = b"\x00\x06"
    rows = [
        head + _field(key.encode()) + kind + _field(payload) + tail
        for key, payload in zip(piece["key"].to_pylist(), piece["payload"].to_pylist(), strict=True)
    ]
    return [b"PGCOPY\n\xff\r\n\x00" + bytes(8), b"".join(rows), b"\xff\xff"]


def _field(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def copy_all(parts: list[list[list[bytes]]], dsn: str) -> None:
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(lambda part: _copy_part(part, dsn), parts))


def _copy_part(part: list[list[bytes]], dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        for chunk in part:
            with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
                for piece in chunk:
                    copy.write(piece)
            connection.commit()


def bare_drain(dsn: str, count: int) -> None:
    """Lease by four connections and acknowledge, as the stream does, and do nothing else."""
    left = count
    params = {"kind": KIND, "limit": 50_000, "lease": 600_000, "cutoff": None, "now": None}
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        connections = [psycopg.connect(dsn, autocommit=True) for _ in range(CONNECTIONS)]
        while left > 0:
            lease = uuid4().hex

            def take(connection: psycopg.Connection[Any], lease: str = lease) -> int:
                found = connection.execute(LEASE_DUE, {**params, "lease_id": lease}).fetchone()
                return int(found[0]) if found else 0

            left -= sum(pool.map(take, connections))
            connections[0].execute(ACKNOWLEDGE_LEASE, {"lease_id": lease})
        for each in connections:
            each.close()
