"""The application of Celery: its broker, its settings, its tasks."""

from __future__ import annotations

import os

import protocol
from celery import Celery

app = Celery("celery_tasks", broker=os.environ["BENCH_REDIS"])
app.conf.update(
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    **protocol.OPTIONS.get("settings", {}),
)


@app.task
def noop(text: str) -> None:
    """Do nothing."""


@app.task
def stamped(offered_at: float) -> None:
    protocol.stamp(offered_at)
