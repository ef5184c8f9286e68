"""System checks of the backends in ``TASKS``: E009 to E011, W010."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage

from delayed_queue.checks import check_alias
from delayed_queue.handlers import registry
from delayed_queue.tasks._api import task_backends
from delayed_queue.tasks.backend import DelayedQueueBackend
from delayed_queue.tasks.serving import is_served


def problems() -> Iterator[CheckMessage]:
    """Yield the problems of all backends."""
    for backend in task_backends.all():
        if django.VERSION < (6, 0):  # later versions do this themselves
            yield from backend.check()
        # If the app is missing, the core reports that.
        if isinstance(backend, DelayedQueueBackend) and apps.is_installed("delayed_queue.tasks"):
            where = f"TASKS[{backend.alias!r}]"
            yield from _problems_of_queues(where, backend)
            yield from _problems_of_database(where, backend.settings.database)


def _problems_of_database(where: str, alias: str) -> Iterator[CheckMessage]:
    setting = f"{where}['OPTIONS']['DATABASE']"
    if alias in settings.DATABASES:
        yield from check_alias(alias, setting, "delayed_queue_tasks.TaskResult")
        return
    yield checks.Error(
        f"{setting} is {alias!r}, which is not in DATABASES.",
        hint=f"Name one of {', '.join(settings.DATABASES)}.",
        id="delayed_queue.E010",
    )


def _problems_of_queues(where: str, backend: Any) -> Iterator[CheckMessage]:
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
