"""The ledger of effects, and the rows of the queue to compare it with."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Final

from django.db import connection
from django.utils import timezone

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Message
from tests.support.processes import wait_until
from tests.workerapp.models import Effect


def offer(queue: DelayedQueue, count: int, prefix: str = "k") -> set[str]:
    keys = {f"{prefix}{number}" for number in range(count)}
    queue.offer_batch([ScheduledMessage(key, key) for key in sorted(keys)])
    return keys


def effects() -> Counter[str]:
    """Return how many times each key was handled."""
    return Counter(Effect.objects.values_list("key", flat=True))


def leased() -> set[str]:
    return set(Message.objects.filter(lease_id__isnull=False).values_list("key", flat=True))


def is_drained() -> bool:
    return not Message.objects.exists()


def expire_leases() -> None:
    """Expire all leases now, as time would."""
    past = timezone.now() - timedelta(seconds=1)
    Message.objects.filter(lease_id__isnull=False).update(scheduled_at=past)


def wait_until_quiet() -> None:
    """Return once no other connection runs a statement."""
    wait_until(lambda: _asked(_BUSY) == 0)


def backends() -> int:
    """Return the number of other connections to the database."""
    return _asked(_BACKENDS)


def terminate_backends() -> int:
    """Terminate every other connection to the database; return their number."""
    return _asked(_TERMINATED)


_OTHERS: Final = """
FROM pg_stat_activity
WHERE datname = current_database()
    AND pid <> pg_backend_pid()
    AND backend_type = 'client backend'
"""
_BACKENDS: Final = "SELECT count(*)" + _OTHERS
_TERMINATED: Final = "SELECT count(pg_terminate_backend(pid))" + _OTHERS
_BUSY: Final = _BACKENDS + "AND state = 'active' AND wait_event IS DISTINCT FROM 'ClientRead'"


def _asked(query: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return int(cursor.fetchone()[0])
