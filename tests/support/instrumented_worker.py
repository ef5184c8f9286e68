"""A worker process with metrics: drains the given queue, or hangs in its first message."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta

import django

django.setup()

from django.test.utils import override_settings  # noqa: E402 # needs the apps

from delayed_queue import Envelope  # noqa: E402
from delayed_queue.observe.metrics import exposition  # noqa: E402
from delayed_queue.worker.engine.worker import Worker  # noqa: E402
from delayed_queue.worker.options import WorkerOptions  # noqa: E402
from tests.support.instruments import registry_of  # noqa: E402


def handle(envelope: Envelope) -> None:
    if envelope.payload == "hang":
        sys.stdout.write("hanging\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    instruments = ["delayed_queue.observe.metrics.PrometheusInstrument"]
    with override_settings(DELAYED_QUEUE={"INSTRUMENTS": instruments}):
        options = WorkerOptions(burst=True, poll_interval=timedelta(milliseconds=50))
        Worker(options, registry_of(**{sys.argv[1]: handle})).run()
    sys.stdout.write(exposition()[0].decode())
