"""Where Spark finds the data source ``delayed_queue``: it imports each ``pyspark_*`` module.

An exception here would break every Python data source of the session, ours or not; so without
PySpark or the rest of the extra the source is simply not there. What else is wrong is logged.
"""

from __future__ import annotations

import logging

_logger = logging.getLogger("delayed_queue")

try:
    from delayed_queue.spark.source import DelayedQueueDataSource as DefaultSource  # noqa: F401
except ImportError as error:
    _logger.debug("event=source_not_installed error=%s", error)
# Whatever it is, it is not for the other data sources to suffer from.
except Exception:
    _logger.exception("event=source_unavailable")
