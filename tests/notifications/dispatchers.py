"""Dispatchers in this process, and their settings for the fakes."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Final

from delayed_queue.notifications.handlers import QUEUES, dispatcher_of
from delayed_queue.notifications.models import FINAL_STATUSES, Notification, Status
from delayed_queue.worker.engine.worker import Worker
from tests.notifications.fakes import FakeSms, FakeSmtp
from tests.support.processes import wait_until
from tests.support.running import running, worker_with

SENT: Final = Status.SUCCESSFULLY_PROCESSED
SENDER: Final = "Shop <shop@example.org>"


def email_entry(server: FakeSmtp, name: str = "mail", **options: Any) -> dict[str, Any]:
    return {
        "kind": "email", "name": name, "sender": SENDER, "host": "127.0.0.1",
        "port": server.port, "threads": 8, "timeout": 2.0, **options,
    }  # fmt: skip


def sms_entry(server: FakeSms, name: str = "texts", **options: Any) -> dict[str, Any]:
    key = {"idempotency_header": "Idempotency-Key"} if server.has_keys else {}
    codes = {"blocked": "permanent"}
    return (
        {"kind": "http", "name": name, "url": server.url, "timeout": 2.0, "codes": codes}
        | key
        | options
    )


def dispatcher(**options: Any) -> Worker:
    """Return a worker of all queues, with the configured retries."""
    claim = {name: options.pop(name) for name in ("claim", "batch_size") if name in options}
    handlers = [dispatcher_of(name, **claim) for name in QUEUES]
    return worker_with(*handlers, **{"poll_interval": timedelta(milliseconds=100)} | options)


def dispatch_all(count: int, **options: Any) -> Counter[str]:
    """Dispatch until ``count`` notifications have ended; return the number in each status."""
    with running(dispatcher(**options)):
        wait_until(lambda: ended() >= count)
    return statuses()


def ended() -> int:
    return Notification.objects.filter(status__in=FINAL_STATUSES).count()


def statuses() -> Counter[str]:
    return Counter(Notification.objects.values_list("status", flat=True))
