"""The customers: threads that pay orders when their time has come."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, Error, connection, connections

from delayed_queue.exceptions import DelayedQueueError
from example_project import shop
from example_project.demo.database import database_now
from example_project.demo.exceptions import DemoError
from example_project.models import Order

TICK_SECONDS: Final = 0.02
# A payment spends its time waiting for the disk, which serves many waiting for it at once.
AT_ONCE: Final = 8


class Payer:
    """Pays, while its block runs, what falls to be paid from the instant on."""

    def __init__(self, opened_at: datetime) -> None:
        self._done_until = opened_at
        self._stopped = threading.Event()
        self._error: Exception | None = None
        self._connections: list[Any] = []
        self._thread = threading.Thread(target=self._run, name="payer", daemon=True)

    def __enter__(self) -> Payer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join()

    def check(self) -> None:
        """Raise DemoError if paying has failed."""
        if self._error is not None:
            raise DemoError(f"Orders could not be paid: {self._error}") from self._error

    def _run(self) -> None:
        try:
            with ThreadPoolExecutor(AT_ONCE, "customer", self._remember_connection) as pool:
                while not self._stopped.wait(TICK_SECONDS):
                    self._pay_until(database_now(), pool)
        except (Error, DelayedQueueError) as error:
            self._error = error
        finally:
            for each in (*self._connections, connection):
                each.close()

    def _remember_connection(self) -> None:
        """Keep this thread's connection, to close it once the thread is gone."""
        own: Any = connections[DEFAULT_DB_ALIAS]
        own.inc_thread_sharing()
        self._connections.append(own)

    def _pay_until(self, now: datetime, pool: ThreadPoolExecutor) -> None:
        paying = Order.objects.filter(pays_at__gt=self._done_until, pays_at__lte=now)
        ids = paying.order_by("pays_at").values_list("order_id", flat=True)
        list(pool.map(self._pay, ids))
        self._done_until = now

    def _pay(self, order_id: str) -> None:
        if not self._stopped.is_set():
            shop.pay(order_id)
