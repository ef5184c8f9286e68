"""The drain of a backlog by a worker, against a bare loop over the same handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

from benchmarks.bare import BareQueue, Row
from benchmarks.database import BARE, KIND, OURS, fill
from benchmarks.measuring import Comparison, Workload
from delayed_queue import Envelope
from delayed_queue.codecs import codec_named
from delayed_queue.handlers import Handler, Registry
from delayed_queue.worker.options import WorkerOptions
from delayed_queue.worker.worker import Worker

BACKLOG: Final = 20_000
CLAIM: Final = 500
Connection = psycopg.Connection[Any]


def drains(connection: Connection) -> list[Comparison]:
    """Return the drains by one process: with the worker's defaults, and with its best."""
    return [
        _drain(connection, "drain", f"claims of {CLAIM}, one thread", 1, CLAIM),
        _drain(connection, "drain-defaults", "the worker's defaults: 100, 8 threads", 8, 100),
    ]


def _drain(
    connection: Connection, name: str, title: str, concurrency: int, batch_size: int
) -> Comparison:
    def work(_: None) -> None:
        options = WorkerOptions(
            queues=("benchmark",), concurrency=concurrency, batch_size=batch_size, burst=True
        )
        _check(Worker(options, _handlers()).run().done)

    def loop(_: None) -> None:
        _check(_bare_drain(BareQueue(connection, KIND), _handle_row))

    return Comparison(
        name,
        f"drain by one worker, {title}",
        Workload(BACKLOG, lambda: _backlog(connection, OURS), work),
        Workload(BACKLOG, lambda: _backlog(connection, BARE), loop),
    )


def _handlers() -> Registry:
    registry = Registry()
    registry.add(Handler("benchmark", _handle, codec_named("bytes"), KIND))
    return registry


def _handle(envelope: Envelope) -> None:
    """Do nothing."""


def _handle_row(row: Row) -> None:
    """Do nothing."""


def _backlog(connection: Connection, table: str) -> Sequence[None]:
    fill(connection, table, BACKLOG)
    return [None]


def _check(handled: int) -> None:
    if handled != BACKLOG:
        raise RuntimeError(f"{handled} messages were handled, not {BACKLOG}.")


def _bare_drain(bare: BareQueue, handle: Callable[[Row], None]) -> int:
    handled = 0
    while True:
        lease_id, rows = bare.claim(CLAIM)
        if not rows:
            return handled
        for row in rows:
            handle(row)
        handled += bare.acknowledge_lease(lease_id)
