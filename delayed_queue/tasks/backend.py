"""The backend that ``TASKS`` names: it stores tasks as messages, and finds their results."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from delayed_queue.checks import NO_APP, NO_APP_HINT
from delayed_queue.codecs import encode
from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import Lost, check_vendor, repeat
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage, PayloadNotEncodable
from delayed_queue.messages import (
    ScheduledMessage,
    check_text,
    from_milliseconds,
    to_milliseconds,
)
from delayed_queue.queue.base import awaited
from delayed_queue.queue.models import StoredBatch
from delayed_queue.tasks import payloads, policies, store
from delayed_queue.tasks._api import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    signals,
)
from delayed_queue.tasks.ids import ids_at, is_id
from delayed_queue.tasks.options import Options
from delayed_queue.tasks.priorities import TaskQueue, priorities, split_kind
from delayed_queue.tasks.results import QueueTaskResult, Results, change, result_of

_CANCELLED: Final = f"{policies.Cancelled.__module__}.{policies.Cancelled.__qualname__}"
_MAX_KEY: Final = 200
# Our own instances, by alias. Django makes one per thread, and new ones when settings change, but
# only after our receiver of that signal.
_backends: Final[dict[str, Any]] = {}


class DelayedQueueBackend(BaseTaskBackend):
    """Tasks as messages of the declared queues, which ``runqueueworker`` runs."""

    task_class = policies.QueueTask
    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        try:
            self.settings, self.problem = Options.of(self.options), ""
        except InvalidConfiguration as error:
            # Kept for the system check, which makes the backends.
            self.settings, self.problem = Options(), f"TASKS[{alias!r}]: {error}"
        if isinstance(params.get("QUEUES"), str):
            self.problem = f"TASKS[{alias!r}]: QUEUES must be a list of names, not a str."
        self._queues: dict[tuple[str, int], Any] = {}

    @property
    def supports_get_result(self) -> bool:  # type: ignore[override] # by RESULTS
        return self.settings.results is not None

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask for what cannot be run here, without any SQL."""
        if self.problem:
            raise ImproperlyConfigured(self.problem)
        if apps.apps_ready and not apps.is_installed("delayed_queue.tasks"):
            raise InvalidTask(f"TASKS[{self.alias!r}] {NO_APP} {NO_APP_HINT}")
        try:
            super().validate_task(task)
        # It compares values without checking their types.
        except (InvalidTask, TypeError, AttributeError) as error:
            raise policies.refused(task, error, self.queues) from error
        policies.check_policy(task)

    # Enqueuing

    def enqueue(self, task: Any, args: Any, kwargs: Any, *, batch: Any = None) -> Any:
        """Enqueue a task at the commit of the open transaction; return its result at once."""
        result = self._enqueue(task, args, kwargs, batch)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        enqueue = sync_to_async(self._enqueue, thread_sensitive=True)
        result = await enqueue(task, args, kwargs, None)
        await signals.task_enqueued.asend(type(self), task_result=result)
        return result

    def _enqueue(self, task: Any, args: Any, kwargs: Any, batch: Any) -> Any:
        (result,) = self._results(task, [(args, kwargs)])
        policy, run_after = policies.policy_of(task), _aware(task.run_after)
        key = policies.unique_key(task, policy, result.args, result.kwargs)
        policies.expiry_of(task, policy, result.enqueued_at, run_after)
        options = {
            "schedule_at": run_after, "expires_at": policy.expires_at,
            "expires_in": policy.expires_in,
            "group": policies.group_of(task, policy, result.args, result.kwargs),
        }  # fmt: skip
        try:
            if key is not None:
                return self._offer_unique(_checked(key), result, policy.replace, options, batch)
            payload = payloads.payload_of(result)
            self._queue(task, batch).offer_if_not_exists(result.id, payload, **options)
        except PayloadNotEncodable as error:
            raise payloads.not_json(task, error, (args, kwargs)) from error
        return result

    def enqueue_many(self, task: Any, arguments: Iterable[Any], *, batch: Any = None) -> Any:
        """Enqueue the task once for each of the arguments, a thousand per statement.

        Each is a tuple or list of positional arguments, a dict of keyword arguments, or a single
        argument. Returns a sequence of results in the same order. If it fails outside a
        transaction, some thousands may have been enqueued.
        """
        results = self._results(task, [_split(each) for each in arguments])
        if policies.policy_of(task).unique is not None:
            raise InvalidTask(f"{task.module_path} is unique: enqueue its calls one by one.")
        messages = self._messages(results)
        try:
            self._queue(task, batch).offer_batch(messages)
        except PayloadNotEncodable as error:
            calls = [(args, kwargs) for _, args, kwargs in results.calls]
            raise payloads.not_json(task, error, *calls) from error
        if len(signals.task_enqueued.receivers) > 1 or signals.logger.isEnabledFor(logging.DEBUG):
            for each in results:
                signals.task_enqueued.send(type(self), task_result=each)
        return results

    aenqueue_many = awaited(enqueue_many)

    def _messages(self, results: Results) -> list[ScheduledMessage]:
        task, common = results.bare.task, payloads.payload_of(results.bare)
        policy, run_after = policies.policy_of(task), _aware(task.run_after)
        expires_at = policies.expiry_of(task, policy, results.bare.enqueued_at, run_after)
        return [
            ScheduledMessage(
                task_id, {**common, **payloads.arguments_of(args, kwargs)}, run_after,
                group=policies.group_of(task, policy, args, kwargs), expires_at=expires_at,
            )
            for task_id, args, kwargs in results.calls
        ]  # fmt: skip

    def open_batch(self, then: Any, args: Any, kwargs: Any, on_dead: str) -> tuple[Any, Any, Any]:
        """Return a batch of messages that the task follows, its queue and its result."""
        results, policy = self._results(then, [(args, kwargs)]), policies.policy_of(then)
        for name in ("unique", "expires_in"):
            if getattr(policy, name) is not None:
                raise InvalidTask(f"{then.module_path} has {name}, so it cannot end a batch.")
        (message,), queue = self._messages(results), self._queue(then)
        try:
            return queue.batch(message, on_dead=on_dead), queue, results[0]
        except PayloadNotEncodable as error:
            raise payloads.not_json(then, error, (args, kwargs)) from error

    def batch_closed(self) -> None:
        """Called behind the end of a batch, for backends that run tasks themselves."""

    def _results(self, task: Any, calls: Sequence[tuple[Any, Any]]) -> Results:
        """Return the results of the calls of a batch, or refuse them."""
        self.validate_task(task)
        self._check_transaction(task)
        called = [_call(task, *each) for each in calls]
        moment, enqueued_at = _times(task, self.settings.database)
        bare = QueueTaskResult(
            task=task, id="", status=TaskResultStatus.READY, enqueued_at=enqueued_at, args=[],
            kwargs={}, backend=self.alias,
        )  # fmt: skip
        ids = islice(ids_at(moment), len(called))
        return Results(bare, [(each, *call) for each, call in zip(ids, called, strict=True)])

    def _check_transaction(self, task: Any) -> None:
        """Refuse a task that would run even if the open transaction is rolled back."""
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

    def _queue(self, task: Any, batch: Any = None) -> Any:
        name, priority = task.queue_name, int(task.priority)
        priorities.announce(self.settings.database, name, priority)
        if (name, priority) not in self._queues:
            self._queues[name, priority] = TaskQueue(name, priority, self.settings.database)
        queue = self._queues[name, priority]
        return queue if batch is None else batch.members_of(queue)

    # Unique tasks

    def _offer_unique(self, key: str, result: Any, replaces: bool, options: Any, batch: Any) -> Any:
        """Enqueue, replace the task of that key, or return its result."""
        using, own_id = self.settings.database, result.id
        write = partial(self._write_unique, key, result, replaces, options, batch)

        def truth(lost: Lost) -> Any:
            with transaction.atomic(using=using):
                if self._was_enqueued(self._active(key), result, own_id, replaces, lost):
                    return result
                return write()

        return repeat(using, write, truth=truth)

    def _write_unique(self, key: str, result: Any, replaces: bool, options: Any, batch: Any) -> Any:
        using, task = self.settings.database, result.task
        with transaction.atomic(using=using):
            active = self._active(key)
            if active is not None and not replaces and not active.row.has_expired:
                return self.get_result(active.id) if self.supports_get_result else result
            queue = self._queue(task, batch)
            if active is not None:
                change(result, id=active.id)
            payload, at = payloads.payload_of(result) | {"id": result.id}, options["schedule_at"]
            queue.offer_or_update(key, payload, **options)
            if active is not None and active.row.kind != queue.kind:
                if active.row.batch_id is not None and batch is None:
                    place = active.row.batch_id, key, active.row.kind
                    StoredBatch.objects.pass_on(*place, queue.kind, using=using)
                TaskQueue(*split_kind(active.row.kind), using).drop_message(key)
            if self.supports_get_result:
                store.record_enqueued(
                    using=using, id=result.id, task=task.module_path, backend=self.alias,
                    kind=queue.kind, key=key, payload=encode(queue.codec, payload),
                    schedule_at=None if at is None else to_milliseconds(at),
                )  # fmt: skip
        return result

    def _active(self, key: str) -> _Active | None:
        """Lock a key; return the waiting or running task under it."""
        for row in store.lock_key(key, using=self.settings.database):
            try:
                payload = json.loads(row.payload)
                payloads.unpack(payload)
                return _Active(row, payloads.id_in(payload, row.kind, key, 0), payload)
            except (ValueError, payloads.TaskGone):
                continue
        return None

    def _was_enqueued(
        self, active: _Active | None, result: Any, own_id: str, replaces: bool, lost: Lost
    ) -> bool:
        """Return whether the try whose answer was lost has enqueued the task.

        Raises OutcomeUnknown if it may have been enqueued and run.
        """
        if active is not None and active.id == result.id:
            is_ours: bool = active.payload == payloads.payload_of(result) | {"id": result.id}
            if is_ours or lost.is_over:
                return is_ours
        elif lost.is_over and active is not None and not replaces:
            return False
        elif lost.is_over and self.supports_get_result and result.id == own_id:
            rows = store.find(result.id, using=self.settings.database)
            return rows[0].stored is not None
        raise lost.unknown()

    # Results

    def get_result(self, result_id: str) -> Any:
        """Return the result; raise TaskResultDoesNotExist."""
        if not self.supports_get_result:
            return super().get_result(result_id)
        return self._found(result_id)[0]

    def _found(self, result_id: Any) -> tuple[Any, Any]:
        """Return the result and the message of a task; raise TaskResultDoesNotExist."""
        text, using = str(result_id), self.settings.database
        result = None
        if is_id(text):
            rows = repeat(using, find := partial(store.find, text, using=using))
            # Repeated: a row that moves to the partition of its day may be visible in neither.
            rows = rows if result_of(text, rows) else repeat(using, find)
            result = result_of(text, rows)
        if result is None or result.backend != self.alias:
            raise TaskResultDoesNotExist(result_id)
        return result, next((each.message for each in rows if each.message is not None), None)

    def cancel(self, result_id: str) -> bool:
        """Cancel a task; return False if it has ended.

        A waiting task is removed at the commit, and FAILED with ``Cancelled``. A running task is
        notified within a second: a coroutine is cancelled, a function checks its context. Raises
        OutcomeUnknown if the connection was lost meanwhile and the task ended in another way.
        """
        result, message = self._found(result_id)
        if message is None:
            return False
        path, held = result.task.module_path, (message["id"], message["createdAt"])
        return self.cancel_message(result.id, path, *held, message["batchId"])

    def cancel_message(
        self, task_id: str, path: str, message: int, created_at: int, batch_id: int | None
    ) -> bool:
        """Cancel the task of a message; return False if it has ended."""
        text = "The task was cancelled before it ran.\n"
        cancel = partial(
            store.cancel, using=self.settings.database, id=task_id, backend=self.alias,
            task=path, message=message, created_at=created_at, batch_id=batch_id,
            errors=json.dumps([{"exception_class_path": _CANCELLED, "traceback": text}]),
        )  # fmt: skip

        def truth(lost: Lost) -> bool:
            if cancel() is None and not self._is_cancelled(task_id):
                raise lost.unknown()
            return True

        return repeat(self.settings.database, cancel, truth=truth) is not None

    def _is_cancelled(self, result_id: str) -> bool:
        errors = self._found(result_id)[0].errors
        return bool(errors) and errors[-1].exception_class_path == _CANCELLED

    acancel = awaited(cancel)


class _Active(NamedTuple):
    """The waiting or running task under a key."""

    row: store.KeyRow
    id: str
    payload: Any


def declared() -> Iterator[tuple[str, Any]]:
    """Yield alias and backend of each entry of TASKS that is ours."""
    if not _backends:
        for alias, configured in (getattr(settings, "TASKS", None) or {}).items():
            if (made := _class_in(configured)) is not None:
                _backends[alias] = made(alias=alias, params=configured)
    yield from list(_backends.items())


def _class_in(configured: Any) -> Any:
    """Return our backend, or a subclass, if an entry of TASKS names one."""
    try:
        found = import_string(configured["BACKEND"])
    except (ImportError, TypeError, AttributeError, KeyError):
        return None
    is_ours = isinstance(found, type) and issubclass(found, DelayedQueueBackend)
    return found if is_ours else None


def backend_of(alias: str) -> Any:
    """Return the backend of an alias; raise TaskGone."""
    backend = dict(declared()).get(alias)
    if backend is None:
        raise payloads.TaskGone(f"TASKS has no backend {alias!r} of delayed_queue: declare it.")
    return backend


def forget_declared() -> None:
    _backends.clear()


def _times(task: Any, using: str) -> tuple[int, datetime]:
    """Return when a task is to run, in milliseconds, and now, by the database's clock.

    Results are kept by the day in their id, so the wrong clock of a host could drop them too early.
    """
    now, due = database_now(using), _aware(task.run_after)
    moment = to_milliseconds(now if due is None else max(due, now))
    return moment, from_milliseconds(to_milliseconds(now))


def _call(task: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments as JSON has them; refuse those that are not JSON, or do not fit."""
    try:
        payloads.check_call(task, args, kwargs)
    except payloads.TaskGone as error:
        raise InvalidTask(str(error)) from None
    try:
        return payloads.plain(args), normalize_json(kwargs) if kwargs else {}
    except (TypeError, ValueError, RecursionError) as error:
        raise payloads.not_json(task, error, (args, kwargs)) from error


def _split(given: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(given, tuple | list):  # first, because the check for a Mapping is slower
        return given, {}
    return ((), given) if isinstance(given, Mapping) else ((given,), {})


def _aware(at: datetime | None) -> datetime | None:
    return timezone.make_aware(at) if at is not None and timezone.is_naive(at) else at


def _checked(key: str) -> str:
    if len(key) <= _MAX_KEY:
        return check_text("key that unique makes", key)
    raise InvalidMessage(
        f"unique makes a key of {len(key)} characters, {key[:60]!r}…: at most {_MAX_KEY}."
    )
