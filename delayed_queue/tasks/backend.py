"""The backend that ``TASKS`` names: tasks become messages, messages and rows become results."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple
from uuid import UUID

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone

from delayed_queue.apps import NO_APP, NO_APP_HINT, check_alias
from delayed_queue.codecs import encode
from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import Lost, check_vendor, repeat
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage, PayloadNotEncodable
from delayed_queue.handlers import registry
from delayed_queue.messages import (
    ScheduledMessage,
    check_text,
    from_milliseconds,
    to_milliseconds,
)
from delayed_queue.tasks._api import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    signals,
)
from delayed_queue.tasks.options import Options, id_at, ids_at, is_id, kind_of_priority
from delayed_queue.tasks.policies import (
    Cancelled,
    Policy,
    QueueTask,
    check_policy,
    group_of,
    not_json,
    policy_of,
    refused,
    unique_key,
)
from delayed_queue.tasks.results import (
    Results,
    TaskGone,
    bare_result,
    check_call,
    result_of,
    unpack,
)

_CANCELLED: Final = f"{Cancelled.__module__}.{Cancelled.__qualname__}"
_LONGEST_KEY: Final = 200
_POSITIONAL: Final = (tuple, list)
_PLAIN: Final = frozenset({bool, float, int, str, type(None)})


class _Active(NamedTuple):
    """The task that lives under a key."""

    kind: str
    id: str
    payload: Any


class DelayedQueueBackend(BaseTaskBackend):
    """Tasks as messages of the queues that it declares, run by ``runqueueworker``."""

    task_class = QueueTask
    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        try:
            self.settings, self.problem = Options.of(self.options), ""
        except InvalidConfiguration as error:
            # Kept: checks make the backends, and would end in a traceback.
            self.settings, self.problem = Options(), f"TASKS[{alias!r}]: {error}"
        if isinstance(params.get("QUEUES"), str):
            self.problem = f"TASKS[{alias!r}]: QUEUES must be a list of names, not a str."
        self._queues: dict[tuple[str, int], Any] = {}

    @property
    def supports_get_result(self) -> bool:  # type: ignore[override] # by RESULTS
        return self.settings.results is not None

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask for what cannot be run here; asks no database."""
        if self.problem:
            raise ImproperlyConfigured(self.problem)
        if apps.apps_ready and not apps.is_installed("delayed_queue.tasks"):
            raise InvalidTask(f"TASKS[{self.alias!r}] {NO_APP} {NO_APP_HINT}")
        try:
            super().validate_task(task)
        # Of what has no order, or no time zone, it asks either.
        except (InvalidTask, TypeError, AttributeError) as error:
            raise refused(task, error, self.queues) from error
        check_policy(task)

    def check(self, **kwargs: Any) -> Iterable[CheckMessage]:
        return [*super().check(**kwargs), *_problems_of(self)]

    # Enqueuing

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a task at the commit of the open transaction; return its result at once."""
        result = self._enqueue(task, args, kwargs)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = await sync_to_async(self._enqueue, thread_sensitive=True)(task, args, kwargs)
        await signals.task_enqueued.asend(type(self), task_result=result)
        return result

    def _enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        self._check_transaction(task)
        moment, enqueued_at = _times(task, self.settings.database)
        result = self._result(task, id_at(moment), enqueued_at, *_call(task, args, kwargs))
        said = policy_of(task)
        key = unique_key(task, said, result.args, result.kwargs)
        group = group_of(task, said, result.args, result.kwargs)
        try:
            if key is not None:
                return self._enqueue_unique(_shortened(key), said, result, group)
            run_after = _aware(task.run_after)
            self._queue(task).offer_if_not_exists(
                result.id, _payload(result), run_after, group=group
            )
        except PayloadNotEncodable as error:
            raise not_json(task, error, (args, kwargs)) from error
        return result

    def enqueue_many(self, task: Any, arguments: Iterable[Any]) -> Sequence[Any]:
        """Enqueue the task once for each of the arguments, a thousand in one statement.

        Each is a tuple or list of positional arguments, a dict of named ones, or one argument
        that is none of these. Returns the results in the same order, each made when it is looked
        at; all are enqueued or, outside a transaction, the first thousands of them.
        """
        self.validate_task(task)
        self._check_transaction(task)
        its = policy_of(task)
        if its.unique is not None:
            raise InvalidTask(f"{task.module_path} is unique: enqueue its calls one by one.")
        moment, enqueued_at = _times(task, self.settings.database)
        said = _said(task, self.alias)
        calls = [_call(task, *_split(each)) for each in arguments]
        ids = list(islice(ids_at(moment), len(calls)))
        if task.run_after is not None:
            said["enqueued"] = to_milliseconds(enqueued_at)
        run_after = _aware(task.run_after)
        messages = [
            ScheduledMessage(
                each, {**said, **_given(args, kwargs)}, run_after,
                group=group_of(task, its, args, kwargs),
            )
            for each, (args, kwargs) in zip(ids, calls, strict=True)
        ]  # fmt: skip
        try:
            self._queue(task).offer_batch(messages)
        except PayloadNotEncodable as error:
            raise not_json(task, error, *calls) from error
        found = Results(len(ids), lambda at: self._result(task, ids[at], enqueued_at, *calls[at]))
        if len(signals.task_enqueued.receivers) > 1 or signals.logger.isEnabledFor(logging.DEBUG):
            for each in found:
                signals.task_enqueued.send(type(self), task_result=each)
        return found

    async def aenqueue_many(self, task: Any, arguments: Iterable[Any]) -> Sequence[Any]:
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(task, arguments)

    def _check_transaction(self, task: Any) -> None:
        """Refuse a task that would run though the transaction it is enqueued in is undone."""
        own = self.settings.database
        check_vendor(own)
        if connections[own].in_atomic_block:
            return
        others = [
            each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block
        ]
        if others:
            raise InvalidTask(
                f"The task {task.module_path} is stored in the database {own!r}, "
                f"but a transaction of {others[0]!r} is open, and its rollback "
                "would not remove the task. Enqueue it in a transaction of "
                f"{own!r}, or after the commit."
            )

    def _result(
        self, task: Any, task_id: str, enqueued_at: datetime, args: list[Any], kwargs: Any
    ) -> Any:
        return bare_result(
            task=task, id=task_id, status=TaskResultStatus.READY, enqueued_at=enqueued_at,
            started_at=None, last_attempted_at=None, finished_at=None, args=args, kwargs=kwargs,
            backend=self.alias, errors=[], worker_ids=[], _return_value=None, metadata={},
        )  # fmt: skip

    def _queue(self, task: Any) -> Any:
        from delayed_queue.tasks.serving import TaskQueue, priorities

        name, priority = task.queue_name, int(task.priority)
        priorities.tell(self.settings.database, name, priority)
        if (name, priority) not in self._queues:
            self._queues[name, priority] = TaskQueue(name, priority, self.settings.database)
        return self._queues[name, priority]

    # One that is unique

    def _enqueue_unique(self, key: str, said: Policy, result: Any, group: str | None) -> Any:
        """Enqueue unless one lives of that key; its result, or where it is replaced, its id."""
        write = partial(self._write_unique, key, said, result, group)
        own_id = result.id

        def truth(lost: Lost) -> Any:
            return write(partial(self._known, result, own_id, said, lost))

        return repeat(self.settings.database, write, truth=truth)

    def _write_unique(
        self, key: str, said: Policy, result: Any, group: str | None,
        is_known: Callable[[_Active | None], bool] | None = None,
    ) -> Any:  # fmt: skip
        from delayed_queue.tasks.models import TaskResult

        using = self.settings.database
        with transaction.atomic(using=using):
            active = self._active(TaskResult.objects.lock_key(key, using=using), key)
            if is_known is not None and is_known(active):
                return result
            if active is not None and not said.replace:
                return self.get_result(active.id) if self.supports_get_result else result
            if active is not None:
                object.__setattr__(result, "id", active.id)
                if active.kind != kind_of_priority(result.task.queue_name, result.task.priority):
                    self._drop(active.kind, key)
            payload = _payload(result) | {"id": result.id}
            queue = self._queue(result.task)
            run_after = _aware(result.task.run_after)
            queue.offer_or_update(key, payload, run_after, group=group)
            if self.supports_get_result:
                TaskResult.objects.note_enqueued(
                    using=using, id=result.id, task=result.task.module_path, backend=self.alias,
                    kind=queue.kind, key=key, payload=encode(queue.codec, payload),
                    schedule_at=None if run_after is None else to_milliseconds(run_after),
                )  # fmt: skip
        return result

    def _known(
        self, result: Any, own_id: str, said: Policy, lost: Lost, active: _Active | None
    ) -> bool:
        """Return whether the lost try has enqueued the task; False: it is to be enqueued.

        Raises OutcomeUnknown where it may have been enqueued and run.
        """
        from delayed_queue.tasks.models import TaskResult

        if active is not None and active.id == result.id:
            is_ours: bool = active.payload == _payload(result) | {"id": result.id}
            if is_ours or lost.is_over:
                return is_ours
        elif lost.is_over and active is not None and not said.replace:
            return False
        elif lost.is_over and self.supports_get_result and result.id == own_id:
            rows = TaskResult.objects.using(self.settings.database).filter(pk=UUID(result.id))
            return bool(rows.exists())
        raise lost.unknown()

    def _active(self, found: Sequence[tuple[str, bytes]], key: str) -> _Active | None:
        """Return the task that lives under a key, if there is one."""
        for kind, data in found:
            try:
                payload = json.loads(data)
                return _Active(kind, unpack(payload, kind, key, 0)[0], payload)
            except (ValueError, TaskGone):
                continue
        return None

    def _drop(self, kind: str, key: str) -> None:
        from delayed_queue.models import Message

        Message.objects.drop(kind, key, using=self.settings.database)

    # Results

    def get_result(self, result_id: str) -> Any:
        """Return the result; raises TaskResultDoesNotExist for what nobody knows."""
        if not self.supports_get_result:
            return super().get_result(result_id)
        return self._found(result_id)[0]

    def _found(self, result_id: Any) -> tuple[Any, Any]:
        from delayed_queue.tasks.models import TaskResult

        text = str(result_id)
        if not is_id(text):
            raise TaskResultDoesNotExist(result_id)
        using = self.settings.database
        find = partial(TaskResult.objects.find, UUID(text), using=using)
        rows = repeat(using, find)
        # Again: a row that is being moved to the partition of its day may be seen in neither.
        rows = rows if result_of(text, rows) else repeat(using, find)
        result = result_of(text, rows)
        if result is None or result.backend != self.alias:
            raise TaskResultDoesNotExist(result_id)
        return result, next((each for each in rows if each.message_id is not None), None)

    def cancel(self, result_id: str) -> bool:
        """Cancel a task; return whether there was anything left to cancel.

        One that waits is taken away at the commit, FAILED with ``Cancelled``. One that runs is
        told within a second: a coroutine is cancelled, a function is to ask its context. Raises
        OutcomeUnknown when the connection was lost meanwhile and it ended in another way.
        """
        from delayed_queue.tasks.models import TaskResult

        result, row = self._found(result_id)
        if row is None:
            return False
        error = {
            "exception_class_path": _CANCELLED,
            "traceback": "The task was cancelled before it ran.\n",
        }
        cancel = partial(
            TaskResult.objects.cancel, row.message_id, row.message_created_at, result.id,
            result.task.module_path, self.alias, json.dumps([error]), using=self.settings.database,
        )  # fmt: skip

        def truth(lost: Lost) -> bool:
            if cancel() is None and not self._is_cancelled(result_id):
                raise lost.unknown()
            return True

        return repeat(self.settings.database, cancel, truth=truth) is not None

    def _is_cancelled(self, result_id: str) -> bool:
        errors = self._found(result_id)[0].errors
        return bool(errors) and errors[-1].exception_class_path == _CANCELLED

    async def acancel(self, result_id: str) -> bool:
        return await sync_to_async(partial(self.cancel, result_id), thread_sensitive=True)()


def _times(task: Any, using: str) -> tuple[int, datetime]:
    """Return when a task is to run, in milliseconds, and now, by the database's clock.

    A result is kept by the day in its id: a wrong clock of a host would drop it too early.
    """
    now, due = database_now(using), _aware(task.run_after)
    moment = to_milliseconds(now if due is None else max(due, now))
    return moment, from_milliseconds(to_milliseconds(now))


def _plain(args: Sequence[Any]) -> list[Any]:
    """Return arguments as JSON has them; what is plain already is not gone through again."""
    if _PLAIN.issuperset(map(type, args)):
        return list(args)
    found: list[Any] = normalize_json(args)
    return found


def _payload(result: Any) -> dict[str, Any]:
    """Return what is stored of a task: documented, for whoever enqueues without this backend."""
    task = result.task
    found = _said(task, result.backend) | _given(result.args, result.kwargs)
    if task.run_after is not None:
        found["enqueued"] = to_milliseconds(result.enqueued_at)
    return found


def _given(args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as they are stored: what there is none of is left out."""
    found: dict[str, Any] = {"args": args} if args else {}
    if kwargs:
        found["kwargs"] = kwargs
    return found


def _said(task: Any, alias: str) -> dict[str, Any]:
    """Return what is the same of all messages of a task."""
    found: dict[str, Any] = {"task": task.module_path}
    if alias != "default":
        found["backend"] = alias
    if task.priority:
        found["priority"] = int(task.priority)
    return found


def _call(task: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments as JSON has them; refuse what is no JSON, or does not fit the function."""
    try:
        check_call(task, args, kwargs)
    except TaskGone as error:
        raise InvalidTask(str(error)) from None
    try:
        return _plain(args), normalize_json(kwargs) if kwargs else {}
    except (TypeError, ValueError, RecursionError) as error:
        raise not_json(task, error, (args, kwargs)) from error


def _split(arguments: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(arguments, _POSITIONAL):  # first: whether it is a Mapping is asked for longer
        return arguments, {}
    return ((), arguments) if isinstance(arguments, Mapping) else ((arguments,), {})


def _aware(at: datetime | None) -> datetime | None:
    return timezone.make_aware(at) if at is not None and timezone.is_naive(at) else at


def _shortened(key: str) -> str:
    if len(key) <= _LONGEST_KEY:
        return check_text("key that unique makes", key)
    raise InvalidMessage(
        f"unique makes a key of {len(key)} characters, {key[:60]!r}…: at most {_LONGEST_KEY}."
    )


def _problems_of(backend: Any) -> Iterator[CheckMessage]:
    """Yield what is wrong with a backend: E009 to E011, W010."""
    # Of a missing app the core's check says so: this one is asked only where Django's is loaded.
    if not apps.is_installed("delayed_queue.tasks"):
        return
    where = f"TASKS[{backend.alias!r}]"
    yield from _of_queues(where, backend)
    if backend.settings.database not in settings.DATABASES:
        yield checks.Error(
            f"{where}['OPTIONS']['DATABASE'] is {backend.settings.database!r}, "
            "which is not in DATABASES.",
            hint=f"Name one of {', '.join(settings.DATABASES)}.",
            id="delayed_queue.E010",
        )
    else:
        setting, result = f"{where}['OPTIONS']['DATABASE']", "delayed_queue_tasks.TaskResult"
        yield from check_alias(backend.settings.database, setting, result)


def _of_queues(where: str, backend: Any) -> Iterator[CheckMessage]:
    from delayed_queue.tasks.serving import is_served

    if not backend.queues:
        yield checks.Error(
            f"{where}['QUEUES'] is empty, so workers would serve no queue.",
            hint="Name the queues of tasks, as in ['default', 'mail'].",
            id="delayed_queue.E011",
        )
    topics = getattr(settings, "DELAYED_QUEUE", {}).get("API", {}).get("TOPICS", ())
    for queue in sorted(backend.queues):
        if queue in topics:
            yield checks.Warning(
                f"DELAYED_QUEUE['API']['TOPICS'] has {queue!r}, a queue of {where}: "
                "callers that may add jobs to it can enqueue any task.",
                hint="Remove it. Callers enqueue tasks with http=True by POST /v1/tasks.",
                id="delayed_queue.W010",
            )
        if queue in registry and not is_served(queue):
            yield checks.Error(
                f"{where} declares the queue {queue!r}, which {registry.get(queue).path} handles.",
                hint="Give tasks a queue of their own, or remove the @handler.",
                id="delayed_queue.E009",
            )
