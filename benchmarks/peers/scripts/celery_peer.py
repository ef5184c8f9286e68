"""Celery on Redis: ``delay``, its worker. It has no call that offers many jobs."""

from __future__ import annotations

import os

import protocol
from celery import Celery

app = Celery("peer", broker=os.environ["BENCH_REDIS"])
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False)
app.conf.update(broker_connection_retry_on_startup=True, **protocol.OPTIONS.get("settings", {}))


@app.task(name="noop")
def noop(text: str) -> None:
    """Do nothing."""


@app.task(name="stamped")
def stamped(offered_at: float) -> None:
    protocol.stamp(offered_at)


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
