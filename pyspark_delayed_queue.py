"""Where Spark finds the data source ``delayed_queue``: it imports each ``pyspark_*`` module.

An exception here would break every Python data source of the session, ours or not; so without
the rest of the extra the source is not there, Spark answers DATA_SOURCE_NOT_FOUND, and a warning
says why.
"""

from __future__ import annotations

import logging

_logger = logging.getLogger("delayed_queue")

try:
    from delayed_queue.spark.source.datasource import DelayedQueueDataSource as DefaultSource  # noqa: F401
except ImportError as error:
    _logger.warning(
        'event=source_not_installed source=delayed_queue error="%s" do="%s"',
        str(error).partition("\n")[0],
        "pip install 'django-delayed-queue[spark]'",
    )
# Whatever it is, it is not for the other data sources to suffer from.
except Exception:
    _logger.exception("event=source_unavailable")
