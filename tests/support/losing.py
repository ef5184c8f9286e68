"""Calls whose answer is lost, while a consumer handles their messages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg

from delayed_queue.queue.store.claim import CONSUME, NO_FLOOR
from tests.support.aiming import Stage
from tests.support.concurrency import calling
from tests.support.proxy import Proxy

T = TypeVar("T")

# The statements that store messages.
OFFER: Final = r"INSERT INTO delayed_queue (AS stored )?\("
REDRIVE: Final = r"id = ANY \(ARRAY\(\s*SELECT id\s+FROM (redriven|newest)\b"


class Consumer:
    """Handles due messages over a connection that is never cut, and counts them by key."""

    def __init__(self, connection: psycopg.Connection[Any], *kinds: str) -> None:
        self._connection = connection
        self._kinds = kinds
        self.handled: Counter[str] = Counter()
        self.payloads: list[Any] = []

    def drain(self, ahead: int = 0) -> None:
        """Handle all messages that are due within ``ahead`` milliseconds."""
        row = self._connection.execute(
            "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        ).fetchone()
        assert row is not None
        for kind in self._kinds:
            params = {
                "kind": kind, "limit": 10_000, "floor": NO_FLOOR, "floor_id": 0,
                "now": row[0] + ahead,
            }  # fmt: skip
            rows = self._connection.execute(CONSUME, params).fetchall()
            self.handled.update(each[1] for each in rows)
            self.payloads += [json.loads(each[2]) for each in rows]


def losing(
    proxy: Proxy,
    call: Callable[[], T],
    meanwhile: Callable[[], object],
    *,
    pattern: str = OFFER,
    stage: Stage = Stage.COMMITTED,
    after: str = "",
) -> T:
    """Return the result of the call whose statement is held there, and then cut off."""
    aim = proxy.aim_at(pattern, stage, after=after)
    with calling(call) as held:
        aim.wait()
        meanwhile()
        proxy.cut_aimed()
        return held.answer()
