"""What workers do beside their messages: bulk runs, and pruning what was kept long enough."""

from __future__ import annotations

import logging
import threading
from typing import Final

from django.db import Error, connections

from delayed_queue.models import BulkRun
from delayed_queue.observe.logs import described
from delayed_queue.queue.bulk import step

logger = logging.getLogger("delayed_queue")

_LONGEST_WAIT: Final = 5.0
_STOP_TIMEOUT: Final = 5.0


class Chores:
    """A thread while there is something to do; asked to look by the heartbeat, on its connection.

    Several workers share the runs batch by batch; which one carries out a batch is no matter.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Begin where a run waits to be carried out."""
        is_busy = self._thread is not None and self._thread.is_alive()
        if not is_busy and BulkRun.objects.next_in(using=self._using) is not None:
            self._thread = threading.Thread(target=self._run, name="chores", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Finish the batch; another worker goes on, or this one when it is back."""
        self._stopped.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT)

    def _run(self) -> None:
        try:
            while not self._stopped.is_set() and self._turn():
                pass
        except Error as error:
            # The next heartbeat begins anew; the batch was undone.
            logger.warning("event=bulk_run_failed error=%s", described(error))
        finally:
            connections[self._using].close()

    def _turn(self) -> bool:
        """Carry out a batch, or wait for the next; return whether there is more."""
        if step(self._using):
            return True
        wait = BulkRun.objects.next_in(using=self._using)
        if wait is not None:
            # Not at once, though its time has come: another worker has it under lock.
            self._stopped.wait(min(max(wait / 1000, 0.05), _LONGEST_WAIT))
        return wait is not None
