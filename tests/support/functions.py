"""A queue whose operations are calls of the SQL functions, for the contract suite."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, LiteralString

from django.db import DatabaseError, connections, transaction
from psycopg import sql as composed

import delayed_queue
from delayed_queue import Batch, DelayedQueue, Envelope, OfferOutcome, ScheduledMessage
from delayed_queue.codecs import decode, encode
from delayed_queue.conf import check_lease
from delayed_queue.durations import Duration
from delayed_queue.exceptions import (
    BatchClosed,
    DelayedQueueError,
    InvalidConfiguration,
    InvalidMessage,
    PayloadNotEncodable,
)
from delayed_queue.handlers import storable
from delayed_queue.messages import (
    MessageState,
    StoredMessage,
    check_delay,
    check_group,
    check_key,
    check_schedule,
    encode_headers,
    to_milliseconds,
)
from delayed_queue.models import Message

FILE: Final = Path(delayed_queue.__file__).parent / "sql/functions_0001.sql"
ERRORS: Final[dict[str, type[DelayedQueueError]]] = {
    "QD001": InvalidMessage, "QD002": PayloadNotEncodable, "QD003": InvalidConfiguration,
    "QD004": BatchClosed,
}  # fmt: skip
# The functions with the test's clock in place of the database's, in a schema of their own.
_CLOCK: Final = """COALESCE(
    NULLIF(current_setting('tests.now', true), '')::timestamptz, statement_timestamp())"""
CLOCKED: Final = "DROP SCHEMA IF EXISTS clocked CASCADE; CREATE SCHEMA clocked;" + re.sub(
    r"public\.(delayed_queue_\w+)\(", r"clocked.\1(", FILE.read_text(encoding="utf-8")
).replace("statement_timestamp()", _CLOCK).replace("clock_timestamp()", _CLOCK)
_TYPES: Final[dict[str, LiteralString]] = {
    "payload": "jsonb", "messages": "jsonb", "headers": "jsonb", "schedule_at": "timestamptz",
    "expires_at": "timestamptz",
    "delay": "interval", "lease": "interval", "duration": "interval", "ids": "bigint[]",
    "n": "integer", "can_update": "boolean", "batch": "bigint",
}  # fmt: skip


def install_clocked() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute(CLOCKED)


@contextmanager
def translated() -> Iterator[None]:
    """Raise the errors of the functions as those of Python."""
    try:
        yield
    except DatabaseError as error:
        kind = ERRORS.get(getattr(error.__cause__, "sqlstate", ""))
        if kind is None:
            raise
        raise kind(str(error).partition("\n")[0]) from error


class FunctionQueue(DelayedQueue):
    """A queue of JSON by functions; checks in Python only what no argument of SQL can be."""

    def _rows(self, function: str, **given: Any) -> list[dict[str, Any]]:
        values = composed.SQL(", ").join(
            composed.SQL("{} => {}::{}").format(
                composed.Identifier(name), composed.Placeholder(name),
                composed.SQL(_TYPES.get(name, "text")),
            )
            for name in given
        )  # fmt: skip
        call = composed.SQL("SELECT * FROM clocked.{}({})").format(
            composed.Identifier(f"delayed_queue_{function}"), values
        )
        now = "" if self.clock is None else self._local_now().isoformat()
        connection = connections[self.using]
        with translated(), transaction.atomic(using=self.using), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('tests.now', %s, false)", [now])
            cursor.execute(call, given)
            names = [each.name for each in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _value(self, function: str, **given: Any) -> Any:
        (row,) = self._rows(function, **given)
        (value,) = row.values()
        return value

    @property
    def _batch(self) -> int | None:
        """The batch that offers of this copy of the queue join."""
        joining = getattr(self._messages, "_joining", None)
        return None if joining is None else joining.batch_id

    @property
    def _is_of_member(self) -> bool:
        """True if a leased member makes the offers, which the functions cannot express."""
        joining = getattr(self._messages, "_joining", None)
        return joining is not None and (joining.message_id is not None or joining.is_inside)

    def _offer(
        self,
        key: str,
        payload: Any,
        schedule_at: datetime | None,
        delay: Duration | None,
        headers: Mapping[str, Any] | None,
        group: str | None,
        expires_at: datetime | None,
        expires_in: Duration | None,
        latest: timedelta | None,
        *,
        can_update: bool,
    ) -> OfferOutcome:
        if expires_in is not None or latest is not None or self._is_of_member:
            return super()._offer(
                key, payload, schedule_at, delay, headers, group, expires_at, expires_in, latest,
                can_update=can_update,
            )  # fmt: skip
        _check_types(key, group, headers, schedule_at, expires_at)
        delay = _span(delay)
        encode(self.codec, payload)
        return OfferOutcome(
            self._value(
                "offer", queue=self.kind, key=key, payload=json.dumps(payload),
                schedule_at=schedule_at, delay=delay, can_update=can_update,
                headers=None if headers is None else json.dumps(dict(headers)), group=group,
                expires_at=expires_at, batch=self._batch,
            )
        )  # fmt: skip

    def offer_batch(self, messages: Iterable[ScheduledMessage]) -> list[OfferOutcome]:
        is_plain = isinstance(messages, Sequence) and not self._is_of_member
        if not is_plain or not all(isinstance(each, ScheduledMessage) for each in messages):
            return super().offer_batch(messages)
        batch = json.dumps([self._described(each) for each in messages])
        rows = self._rows("offer_many", queue=self.kind, messages=batch)
        assert [row["key"] for row in rows] == [each.key for each in messages]
        return [OfferOutcome(row["outcome"]) for row in rows]

    def _described(self, message: ScheduledMessage) -> dict[str, Any]:
        at, until = message.schedule_at, message.expires_at
        _check_types(message.key, message.group, message.headers, at, until)
        encode(self.codec, message.payload)
        return {
            "key": message.key, "payload": message.payload, "can_update": bool(message.can_update),
            "schedule_at": None if at is None else at.isoformat(), "group": message.group,
            "expires_at": None if until is None else until.isoformat(),
            "headers": None if message.headers is None else dict(message.headers),
            "batch": self._batch,
        }  # fmt: skip

    def drop_message(self, key: str) -> bool:
        _check_types(key)
        return bool(self._value("drop", queue=self.kind, key=key))

    def contains_message(self, key: str) -> bool:
        return self.read(key) is not None

    def read(self, key: str) -> StoredMessage | None:
        _check_types(key)
        for row in self._rows("read", queue=self.kind, key=key):
            return StoredMessage(
                key, self.name, MessageState(row["state"]), row["attempts"], row["scheduled_at"],
                row["scheduled_at_initially"], row["created_at"], row["lease_id"],
                json.loads(row["headers"] or "{}"), row["last_error"] or "",
                (row["payload"] or "").encode() or bytes(self._stored_row(row["id"]).payload),
                partial(decode, self.codec), row["group"], row["expires_at"],
            )  # fmt: skip
        return None

    def try_poll_many(self, limit: int) -> Batch:
        rows = self._rows(
            "claim", queue=self.kind, n=min(limit, 2**31 - 1), lease=self.lease_duration
        )
        due = Message.objects.using(self.using).in_bulk([row["id"] for row in rows])
        envelopes = tuple(
            Envelope(
                row["key"], json.loads(row["payload"]), self.name, row["attempt"], row["lease_id"],
                row["id"], to_milliseconds(row["scheduled_at"]),
                to_milliseconds(due[row["id"]].due_at), to_milliseconds(row["leased_until"]),
                json.loads(row["headers"] or "{}"), self, row["group"],
                batch_id=due[row["id"]].batch_id,
            )
            for row in rows
        )  # fmt: skip
        return Batch(envelopes, rows[0]["lease_id"] if rows else "", self)

    def acknowledge(self, envelope: Envelope) -> bool:
        return self._settled("acknowledge", envelope)

    def acknowledge_batch(self, batch: Batch) -> int:
        return int(self._value("acknowledge", lease_id=batch.lease_id)) if batch else 0

    def release(self, envelope: Envelope, delay: Duration | None = None, error: str = "") -> bool:
        return self._settled("release", envelope, delay=_span(delay), error=storable(error))

    def reject(self, envelope: Envelope, reason: str) -> bool:
        return self._settled("reject", envelope, reason=storable(reason))

    def extend(self, envelope: Envelope, duration: Duration | None = None) -> bool:
        lease = self.lease_duration if duration is None else duration
        if not isinstance(lease, timedelta):
            lease = check_lease(lease)
        is_held = self._settled("extend", envelope, duration=lease)
        if is_held:
            until = self._stored_row(envelope.message_id).scheduled_at
            envelope.leased_until_ms = to_milliseconds(until)
        envelope.lease_lost |= not is_held
        return is_held

    def _stored_row(self, row_id: int) -> Message:
        return Message.objects.using(self.using).get(pk=row_id)

    def _settled(self, function: str, envelope: Envelope, **given: Any) -> bool:
        ids = [envelope.message_id]
        return bool(self._value(function, lease_id=envelope.lease_id, ids=ids, **given) == 1)


def _span(delay: Duration | None) -> timedelta | None:
    if delay is None or isinstance(delay, timedelta):
        return delay
    return timedelta(milliseconds=check_delay(delay, datetime.now(UTC)) or 0)


def _check_types(
    key: Any,
    group: Any = None,
    headers: Any = None,
    schedule_at: Any = None,
    expires_at: Any = None,
) -> None:
    """Refuse what is no text, no JSON and no instant: SQL has no such arguments."""
    if not isinstance(key, str) or not key.isprintable():
        check_key(key)
    if not isinstance(group, str) or not group.isprintable():
        check_group(group)
    if not isinstance(headers, Mapping) or "\\u0000" in json.dumps(headers, default=str):
        encode_headers(headers)
    check_schedule(schedule_at)
    check_schedule(expires_at)
