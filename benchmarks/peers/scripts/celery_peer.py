"""Celery on Redis: ``delay``, its worker. It has no call that offers many jobs."""

from __future__ import annotations

import protocol
from celery_tasks import app, noop, stamped


def offer(sizes) -> None:
    for size in sizes:
        for _ in range(size):
            noop.delay(protocol.TEXT)


def pace(moments) -> None:
    for moment in moments:
        stamped.delay(moment)


def work() -> None:
    arguments = [*protocol.OPTIONS.get("arguments", ()), "--loglevel=ERROR"]
    app.worker_main(["worker", f"--concurrency={protocol.PROCESSES}", *arguments])


if __name__ == "__main__":
    protocol.main(lambda: None, offer, offer, pace, work)
