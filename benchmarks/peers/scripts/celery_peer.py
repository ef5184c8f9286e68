"""Celery on Redis: ``delay``, its worker; it has no way to offer in bulk."""

from __future__ import annotations

import protocol
from celery_tasks import app, noop, stamped


def offer_each(size: int) -> None:
    for _ in range(size):
        noop.delay(protocol.TEXT)


def pace(count: int, rate: float) -> None:
    for moment in protocol.paced(count, rate):
        stamped.delay(moment)


def work() -> None:
    arguments = [*protocol.OPTIONS.get("arguments", []), "--loglevel=ERROR"]
    if protocol.PROCESSES > 1 or not protocol.OPTIONS.get("alone"):
        arguments.append(f"--concurrency={protocol.PROCESSES}")
    app.worker_main(["worker", *arguments])


if __name__ == "__main__":
    protocol.main(
        lambda: None,
        lambda count: protocol.one_by_one(count, lambda: noop.delay(protocol.TEXT)),
        lambda count: protocol.in_chunks(count, offer_each),
        pace,
        work,
    )
