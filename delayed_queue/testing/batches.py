"""Batches of an in-memory queue."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from delayed_queue.models import StoredBatch
from delayed_queue.queue.models import BatchManager
from delayed_queue.queue.store.finishing import DIED, DONE, DROPPED, EXPIRED, Joining
from delayed_queue.queue.store.offer import Columns, Offered
from delayed_queue.testing.stores import BatchRow, InMemoryStore, Row

if TYPE_CHECKING:
    _Batches = BatchManager[StoredBatch]  # for its signatures, as in queues.py
else:
    _Batches = object


class InMemoryBatches(_Batches):
    """The statements of BatchManager."""

    def __init__(self, store: InMemoryStore, offer: Callable[..., bool | None]) -> None:
        self._store = store
        self._offer = offer

    def next_id(self, **_: Any) -> int:
        return self._store.new_id()

    def open(self, batch_id: int, kind: str, then: Offered, *, waits: bool, **_: Any) -> int:
        self._store.batches[batch_id] = BatchRow(then, waits)
        return batch_id

    def join(
        self, joining: Joining, kind: str, offers: Columns, *, can_update: bool, **options: Any
    ) -> dict[str, bool] | None:
        if not self._is_joinable(joining):
            return None
        written = {}
        for key, payload, schedule, headers, group, expires_at in zip(*offers, strict=True):
            created = self._offer(
                kind, key, payload, can_update=can_update, schedule_at=schedule, headers=headers,
                group=group, expires_at=expires_at, **options,
            )  # fmt: skip
            row = self._store.find(kind, key)
            if created is not None and row is not None:
                written[key] = created
                self._store.put(replace(row, batch_id=joining.batch_id))
                if row.batch_id != joining.batch_id:
                    self.leave([row], DROPPED, options.get("now"))
        return written

    def _is_joinable(self, joining: Joining) -> bool:
        batch = self._store.batches.get(joining.batch_id)
        if batch is None or joining.is_inside or joining.message_id is None:
            return batch is not None and (joining.is_inside or not batch.is_closed)
        row = self._store.rows.get(joining.message_id)
        return row is not None and (row.lease_id, row.batch_id) == (
            joining.lease_id, joining.batch_id,
        )  # fmt: skip

    def close(self, batch_id: int, *, now: int | None = None, **_: Any) -> bool:
        batch = self._store.batches.get(batch_id)
        if batch is None or batch.is_closed:
            return False
        self._store.batches[batch_id] = replace(batch, is_closed=True)
        self.finish({batch_id}, now)
        return True

    def cancel(self, batch_id: int, **_: Any) -> bool:
        return self._store.batches.pop(batch_id, None) is not None

    def remove(
        self, numbers: Mapping[tuple[int, str], int], *, now: int | None = None, **_: Any
    ) -> None:
        for (batch_id, outcome), number in numbers.items():
            self._count(batch_id, outcome, number)
        self.finish({batch_id for batch_id, _ in numbers}, now)

    def leave(self, rows: Iterable[Row], outcome: str, now: int | None = None) -> None:
        """Count members that were removed."""
        batches = Counter(row.batch_id for row in rows if row.batch_id is not None)
        self.remove({(each, outcome): number for each, number in batches.items()}, now=now)

    def take_back(self, dead: Row) -> None:
        """Count a dead letter that was redriven no longer."""
        if dead.batch_id is not None:
            self._count(dead.batch_id, DIED, -1)

    def _count(self, batch_id: int, outcome: str, number: int) -> None:
        if (batch := self._store.batches.get(batch_id)) is not None:
            left = {**batch.left, outcome: batch.left.get(outcome, 0) + number}
            self._store.batches[batch_id] = replace(batch, left=left)

    def finish(self, batches: Iterable[int], now: int | None = None) -> None:
        """Offer ``then`` of those that are closed and have no members."""
        rows = [*self._store.rows.values(), *(each.row for each in self._store.letters.values())]
        for batch_id in sorted(set(batches) - {row.batch_id for row in rows}):
            batch = self._store.batches.get(batch_id)
            if batch is not None and batch.is_closed:
                del self._store.batches[batch_id]
                self._offer_then(batch_id, batch, now)

    def _offer_then(self, batch_id: int, batch: BatchRow, now: int | None) -> None:
        then = batch.then
        counts = {each: batch.left.get(each, 0) for each in (DONE, DIED, DROPPED, EXPIRED)}
        header = {"id": batch_id, "total": sum(counts.values()), **counts}
        headers = json.dumps({**json.loads(then.headers or "{}"), "batch": header})
        self._offer(
            then.kind, then.key, then.payload, can_update=True, schedule_at=then.schedule_at,
            headers=headers, group=then.group, expires_at=then.expires_at, now=now, channel="",
        )  # fmt: skip
