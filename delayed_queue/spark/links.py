"""A connection that comes back: transactions are repeated where the database asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.retries import Backoff, is_transient
from delayed_queue.spark.connecting import reconnect
from delayed_queue.spark.drivers import DriverError, PsycopgSession
from delayed_queue.spark.options import Options

T = TypeVar("T")

# The transaction was ended for having idled: the connection is gone, nothing else.
_IDLE_TIMEOUT: Final = "25P03"
_TOO_MANY: Final = "53300"
_BACKOFF: Final = Backoff(retries=8)


class Link:
    """One connection to the database of the options, opened when it is first needed."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._session: PsycopgSession | None = None

    def repeat(self, what: str, work: Callable[[PsycopgSession], T]) -> T:
        """Do the work in a transaction and commit it, again while that may help.

        The work must bear being done twice: a commit that was not answered may have happened.
        Raises ResourceUnavailable, beginning with ``what``.
        """
        waits = iter(_BACKOFF.waits())
        while True:
            try:
                return self._once(work)
            except DriverError as error:
                wait = next(waits, None)
                if wait is None or not is_worth_a_retry(error.sqlstate):
                    raise ResourceUnavailable(f"{what} failed: {error}") from None
                time.sleep(wait)

    def once(self, what: str, work: Callable[[PsycopgSession], T]) -> T:
        """Do the work in a transaction and commit it, or raise ResourceUnavailable."""
        try:
            return self._once(work)
        except DriverError as error:
            raise ResourceUnavailable(f"{what} failed: {error}") from None

    def _once(self, work: Callable[[PsycopgSession], T]) -> T:
        try:
            self._session = self._session or reconnect(self._options)
            answer = work(self._session)
            self._session.commit()
        except BaseException:
            # Whatever it was: what is half done is undone with the connection.
            self.close()
            raise
        return answer

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def is_worth_a_retry(sqlstate: str | None) -> bool:
    """Return whether the same transaction may succeed on a new connection."""
    return sqlstate in {_IDLE_TIMEOUT, _TOO_MANY} or is_transient(sqlstate)
