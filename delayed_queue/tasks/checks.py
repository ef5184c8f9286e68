"""System checks of tasks: what is declared, and who else serves it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage

from delayed_queue.handlers import registry


def check_backends(**kwargs: Any) -> list[CheckMessage]:
    """Have the backends of ``TASKS`` checked, as Django does from 6.0 on."""
    from delayed_queue.tasks._api import task_backends

    return [each for backend in task_backends.all() for each in backend.check(**kwargs)]


def problems_of(backend: Any) -> Iterator[CheckMessage]:
    """Yield what is wrong with a backend: E009 to E011."""
    # Of a missing app the core's check says so: this one is asked only where Django's is loaded.
    if not apps.is_installed("delayed_queue.tasks"):
        return
    where = f"TASKS[{backend.alias!r}]"
    yield from _of_queues(where, backend)
    if backend.settings.database not in settings.DATABASES:
        yield checks.Error(
            f"{where}['OPTIONS']['DATABASE'] is {backend.settings.database!r}, no database.",
            hint=f"Name one of {', '.join(settings.DATABASES)}.",
            id="delayed_queue.E010",
        )


def _of_queues(where: str, backend: Any) -> Iterator[CheckMessage]:
    from delayed_queue.tasks.serving import is_served

    if not backend.queues:
        yield checks.Error(
            f"{where}['QUEUES'] is empty: no worker would know which queues to serve.",
            hint="Name the queues of tasks, as in ['default', 'mail'].",
            id="delayed_queue.E011",
        )
    for queue in sorted(backend.queues):
        if queue in registry and not is_served(queue):
            yield checks.Error(
                f"{where} declares the queue {queue!r}, which {registry.get(queue).path} handles.",
                hint="Give tasks a queue of their own, or take the @handler away.",
                id="delayed_queue.E009",
            )
