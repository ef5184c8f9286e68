"""Waiting and running tasks: their messages, shown like recorded results."""

from __future__ import annotations

import json
import re
from typing import Any, Final
from uuid import UUID

from django.db.models import BinaryField, F, Func, IntegerField, QuerySet, Value
from django.db.models.functions import Greatest

from delayed_queue.admin.rows import RowState, as_read, is_id, state_of
from delayed_queue.admin.searching import HOLDER_LENGTH
from delayed_queue.admin.workers import names_of_holders
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import Message
from delayed_queue.tasks import ids
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.priorities import Priorities
from delayed_queue.tasks.store import priorities_by_queue
from delayed_queue.tasks.store_search import under_way

# Bytes read of a payload, from its end: the path is behind arguments of any length.
_TAIL: Final = 4_000
# The path as the codec writes it, and other writers that put it last.
_PATH: Final = re.compile(r'"task" ?: ?"([^"\\]+)" ?}$')


def task_kinds(using: str) -> list[str]:
    """Return the kinds of all declared queues, of every priority that was used."""
    from delayed_queue.tasks.serving import servings

    used = Priorities(priorities_by_queue(using=using))
    return [kind for queue in sorted(servings) for kind in used.kinds(queue)]


def id_of(row: Any) -> str:
    """Return the id of the task, also where the row has the id of its message."""
    return getattr(row, "task_id", None) or str(row.pk)


def tasks_under_way(using: str, **wanted: Any) -> list[Any]:
    """Return tasks of ``under_way``; those with a record have its times."""
    found = under_way(task_kinds(using), using=using, **wanted)
    by_id = {each.pk: each for each in _messages(using).filter(pk__in=found)}
    messages = [by_id[each] for each in found if each in by_id]
    names = names_of_holders(messages, using)
    rows = [_task_of(each, names.get((each.lease_id or "")[:HOLDER_LENGTH])) for each in messages]
    results = TaskResult.objects.using(using).defer("payload", "return_value", "errors")
    recorded = {str(each.pk): each for each in results.filter(pk__in=[*map(id_of, rows)])}
    return [_joined(each, recorded.get(id_of(each))) for each in rows]


def _joined(row: Any, recorded: Any) -> Any:
    """Return the record of a task with its message; the row itself without a record."""
    if recorded is None:
        return row
    recorded.message, recorded.read_at = row.message, row.read_at
    recorded.worker_ids += row.worker_ids[len(recorded.worker_ids) :]
    return recorded


def find_task(token: str, results: QuerySet[Any]) -> Any:
    """Return the task of a result's id or a message's, as it is now; None if it is gone."""
    if is_id(token):
        message = _messages(results.db).filter(pk=token, kind__in=task_kinds(results.db)).first()
        return None if message is None else _task_of(message)
    if not ids.is_id(token):
        return None
    row: Any = results.filter(pk=token).first()
    if row is not None and row.key is not None:
        held = {"key": row.key, "kind": row.kind}
    else:
        held = {"key": token, "kind__in": task_kinds(results.db)}
    message = _messages(results.db).filter(**held).first()
    return row if message is None else _joined(_task_of(message), row)


def _messages(using: str) -> Any:
    return as_read(Message.objects.using(using).all()).annotate(payload_tail=_tail_of("payload"))


def _tail_of(column: str) -> Func:
    length = Func(F(column), function="octet_length", output_field=IntegerField())
    start = Greatest(Value(1), length - Value(_TAIL - 1))
    return Func(F(column), start, function="substring", output_field=BinaryField())


def _task_of(message: Any, worker: str | None = None) -> Any:
    """Return the task of a message as a row that is not stored.

    Its id is the task's, or the message's if that has another key.
    """
    # Imported late: without a backend in TASKS there may be no tasks to import.
    from delayed_queue.tasks.payloads import id_in

    tail = bytes(message.payload_tail).decode(errors="replace")
    try:
        said = json.loads(tail)
    except ValueError:
        said = None
    path = _PATH.search(tail)
    said = said if isinstance(said, dict) else {"task": path[1] if path else ""}
    scheduled_at = to_milliseconds(message.scheduled_at_initially)
    is_running = state_of(message) is RowState.LEASED
    row: Any = TaskResult(
        id=UUID(message.key) if ids.is_id(message.key) else message.pk,
        task=str(said.get("task", "")), backend=str(said.get("backend", "default")),
        kind=message.kind, key=message.key, enqueued_at=message.created_at,
        scheduled_at=message.scheduled_at_initially, status="", errors=[],
        worker_ids=[""] * (message.attempts - is_running) + [worker or ""] * is_running,
        metadata={},
    )  # fmt: skip
    row.task_id = id_in(said, message.kind, message.key, scheduled_at)
    row.message, row.read_at = message, message.read_at
    return row
