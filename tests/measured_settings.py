"""Settings of workers that measure."""

from __future__ import annotations

from tests.lean_settings import *  # noqa: F403
from tests.lean_settings import DELAYED_QUEUE

DELAYED_QUEUE = {
    **DELAYED_QUEUE,
    "INSTRUMENTS": ["delayed_queue.observe.metrics.PrometheusInstrument"],
}
