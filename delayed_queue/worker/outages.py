"""What a worker makes of a database that is away: an outage to sit out, or a reason to end."""

from __future__ import annotations

import logging
import time
from typing import Final

from django.db import connections
from psycopg import pq
from psycopg.conninfo import make_conninfo

from delayed_queue.conf import get_settings
from delayed_queue.exceptions import DatabaseRefused, ResourceUnavailable
from delayed_queue.observe.logs import described, first_line

logger = logging.getLogger("delayed_queue")

# What no waiting mends: wrong user or password, no such database, no permission.
_REFUSALS: Final = ("28", "3D000", "42501")


class Outage:
    """The time since the database was last there, for one worker.

    A worker that has never reached it ends when it is refused: at once where the SQLSTATE says
    so. Connections are refused without one, so then it must last as long as calls are repeated
    elsewhere; and the server must be there, or it is an outage. ``is_finite``: one that is to
    end when nothing is left waits no longer than that for an outage, too.
    """

    def __init__(self, using: str, *, is_finite: bool) -> None:
        self._using = using
        self._is_finite = is_finite
        self._began_at: float | None = None
        self.is_at_start = True

    def end(self) -> None:
        """The database is there."""
        self._began_at = None
        self.is_at_start = False

    def note(self, error: Exception) -> None:
        """Log the error that begins an outage; raise if there is no point in trying again."""
        now = time.monotonic()
        if self._began_at is None:
            self._began_at = now
            logger.error("event=database_unavailable error=%s", described(error))
        is_long = now - self._began_at >= get_settings().BACKOFF.deadline.total_seconds()
        if self.is_at_start and self._is_refusal(error, is_long=is_long):
            raise DatabaseRefused(
                f"The database {self._using!r} refuses this worker: {first_line(error)}"
            ) from error
        if self._is_finite and is_long:
            raise ResourceUnavailable(
                f"The database {self._using!r} was away for {now - self._began_at:.0f} s: "
                f"{first_line(error)}"
            ) from error

    def _is_refusal(self, error: Exception, *, is_long: bool) -> bool:
        sqlstate = getattr(error.__cause__, "sqlstate", None)
        if sqlstate is not None:
            return str(sqlstate).startswith(_REFUSALS)
        return is_long and self._is_server_there()

    def _is_server_there(self) -> bool:
        params = connections[self._using].get_connection_params()
        known = {one.keyword.decode() for one in pq.Conninfo.get_defaults()}
        conninfo = make_conninfo(**{key: each for key, each in params.items() if key in known})
        return pq.PGconn.ping(conninfo.encode()) == pq.Ping.OK
