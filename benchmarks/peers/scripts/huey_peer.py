"""Huey on PostgreSQL: calling a task, its consumer; it has no way to offer in bulk."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import protocol
from huey_tasks import huey, noop, stamped


def offer_each(size: int) -> None:
    # Nothing that huey has does more per commit than this.
    for _ in range(size):
        noop(protocol.TEXT)


def pace(count: int, rate: float) -> None:
    for moment in protocol.paced(count, rate):
        stamped(moment)


def work() -> None:
    consumer = Path(sys.executable).with_name("huey_consumer")
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    arguments = ["-w", str(protocol.PROCESSES), *protocol.OPTIONS.get("arguments", [])]
    os.execv(consumer, [str(consumer), "huey_tasks.huey", *arguments])  # noqa: S606


if __name__ == "__main__":
    protocol.main(
        huey.pending,
        lambda count: protocol.one_by_one(count, lambda: noop(protocol.TEXT)),
        lambda count: protocol.in_chunks(count, offer_each),
        pace,
        work,
    )
