"""Workers: processes that claim messages and run their handlers."""

from __future__ import annotations

from delayed_queue.workers.options import WorkerOptions
from delayed_queue.workers.tally import Tally
from delayed_queue.workers.worker import Worker

__all__ = ["Tally", "Worker", "WorkerOptions"]
