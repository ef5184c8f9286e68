"""factory_boy factories of stored rows: messages, dead letters, results, schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import getrandbits
from typing import Any
from uuid import UUID, uuid4

from delayed_queue.codecs import codec_named, encode
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import DeadLetter, Message, Schedule

try:
    from factory.declarations import (
        LazyAttribute,
        LazyFunction,
        SelfAttribute,
        Sequence,
        Trait,
        Transformer,
    )
    from factory.django import DjangoModelFactory
except ModuleNotFoundError as error:
    raise ImportError(
        f"delayed_queue.testing.factories needs factory_boy: pip install factory_boy ({error})."
    ) from error


def from_now(**span: float) -> datetime:
    return datetime.now(UTC) + timedelta(**span)


def _encoded(payload: Any) -> bytes:
    """Encode as JSON; bytes are stored as they are."""
    return payload if isinstance(payload, bytes) else encode(codec_named("json"), payload)


class MessageFactory(DjangoModelFactory[Message]):
    """A message that has been due for a minute."""

    class Meta:
        model = Message

    kind = LazyAttribute(lambda row: f"{row.queue}|json")
    key = Sequence("order-{}".format)
    payload = Transformer({"total": 12}, transform=_encoded)
    created_at = LazyFunction(lambda: from_now(minutes=-10))
    scheduled_at = LazyFunction(lambda: from_now(minutes=-1))
    scheduled_at_initially = SelfAttribute("scheduled_at")
    attempts = 0

    class Params:
        queue = "orders"
        due = Trait(scheduled_at=LazyFunction(lambda: from_now(minutes=-1)))
        scheduled = Trait(scheduled_at=LazyFunction(lambda: from_now(hours=1)))
        leased = Trait(
            scheduled_at=LazyFunction(lambda: from_now(minutes=5)),
            scheduled_at_initially=LazyFunction(lambda: from_now(minutes=-1)),
            due_at=SelfAttribute("scheduled_at_initially"),
            lease_id=LazyFunction(lambda: str(uuid4())),
            attempts=1,
        )
        expired = Trait(leased=True, scheduled_at=LazyFunction(lambda: from_now(seconds=-30)))


class DeadLetterFactory(DjangoModelFactory[DeadLetter]):
    """A message that died five minutes ago, always with the same error."""

    class Meta:
        model = DeadLetter

    kind = LazyAttribute(lambda row: f"{row.queue}|json")
    # Distinct from the keys of MessageFactory: a redrive skips a key that is in use.
    key = Sequence("dead-order-{}".format)
    payload = Transformer({"total": 12}, transform=_encoded)
    attempts = 5
    reason = "attempts exhausted: ValueError"
    first_error = "Traceback (most recent call last):\nValueError: no such order"
    last_error = SelfAttribute("first_error")
    scheduled_at_initially = LazyFunction(lambda: from_now(hours=-1))
    created_at = LazyFunction(lambda: from_now(hours=-2))
    died_at = LazyFunction(lambda: from_now(minutes=-5))

    class Params:
        queue = "orders"


class ScheduleFactory(DjangoModelFactory[Schedule]):
    """A schedule of an operator, hourly, not installed yet."""

    class Meta:
        model = Schedule

    queue = "orders"
    kind = LazyAttribute(lambda row: f"{row.queue}|{row.codec}")
    codec = "json"
    key_prefix = Sequence("schedule-{}".format)
    type = "cron"
    expression = "0 * * * *"
    timezone = "UTC"


class TaskResultFactory(DjangoModelFactory[Any]):
    """The result of a task that finished a minute ago; needs the app ``delayed_queue.tasks``."""

    class Meta:
        model = "delayed_queue_tasks.TaskResult"

    # Version 7: results are kept by the day in their id, which is that of ``scheduled_at``.
    id = LazyAttribute(
        lambda row: UUID(
            int=to_milliseconds(row.scheduled_at) << 80 | 7 << 76 | 2 << 62 | getrandbits(62)
        )
    )
    task = "shop.tasks.send_receipt"
    backend = "default"
    kind = LazyAttribute(lambda row: f"{row.queue}|json")
    payload = LazyAttribute(
        lambda row: _encoded({"task": row.task, "args": row.args, "kwargs": row.kwargs})
    )
    status = "SUCCESSFUL"
    enqueued_at = SelfAttribute("scheduled_at")
    scheduled_at = LazyFunction(lambda: from_now(minutes=-2))
    started_at = LazyAttribute(lambda row: row.finished_at - timedelta(seconds=1))
    last_attempted_at = SelfAttribute("started_at")
    finished_at = LazyFunction(lambda: from_now(minutes=-1))
    worker_ids = ["worker-1"]

    class Params:
        queue = "default"
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        failed = Trait(
            status="FAILED",
            errors=[
                {
                    "exception_class_path": "builtins.ValueError",
                    "traceback": "Traceback (most recent call last):\nValueError: no such order",
                }
            ],
        )
