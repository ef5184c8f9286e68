"""Where Spark finds the data source ``delayed_queue``: it imports each ``pyspark_*`` module.

An exception here would break every Python data source of the session, ours or not; so without
PySpark or the rest of the extra the source is simply not there.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(Exception):
    from delayed_queue.spark.source import DelayedQueueDataSource as DefaultSource  # noqa: F401
