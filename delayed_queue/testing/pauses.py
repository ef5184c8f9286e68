"""The statements of PausedQueueManager, over an in-memory store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.models import PausedQueue
from delayed_queue.queue.store.pauses import PausedQueueManager
from delayed_queue.testing.stores import InMemoryStore

if TYPE_CHECKING:
    _Pauses = PausedQueueManager[PausedQueue]  # for its signatures, as in messages.py
else:
    _Pauses = object


class InMemoryPauses(_Pauses):
    """The statements of PausedQueueManager; nobody asks a store for the reason."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    def pause(
        self,
        kind: str,
        *,
        reason: str = "",
        by: str = "",
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:
        with self._store.lock:
            is_new = kind not in self._store.paused
            self._store.paused |= {kind}
        return is_new

    def resume(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        with self._store.lock:
            was_paused = kind in self._store.paused
            self._store.paused -= {kind}
        return was_paused

    def is_paused(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        with self._store.lock:
            return kind in self._store.paused
