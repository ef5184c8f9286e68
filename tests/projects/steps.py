"""The steps of every project: check, migrate, offer, work, browse.

Runs in a process under the settings of one configuration, and prints each step that worked.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from io import StringIO
from typing import Any, Final

import django
from django.apps import apps
from django.conf import settings as django_settings
from django.core.management import call_command
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

# Each project adds some of its own.
settings: Any = django_settings
STEPS: Final[list[Callable[[], None]]] = []


def step(function: Callable[[], None]) -> Callable[[], None]:
    STEPS.append(function)
    return function


def alias() -> str:
    """Return the database of the package in this configuration."""
    return str(settings.ALIAS)


def queue(name: str) -> Any:
    from delayed_queue import DelayedQueue

    return DelayedQueue(name, using=alias())


@step
def check() -> None:
    """The checks find nothing, before the migrations and after."""
    call_command("check", fail_level="WARNING", stdout=StringIO())


@step
def migrate() -> None:
    """Each database is migrated twice; our tables are on the router's database."""
    for each in [*settings.DATABASES, *settings.DATABASES]:
        call_command("migrate", database=each, verbosity=0)
        call_command("check", databases=[each], fail_level="WARNING", stdout=StringIO())
    for each in settings.DATABASES:
        tables = connections[each].introspection.table_names()
        is_here = any(table.startswith("delayed_queue") for table in tables)
        assert is_here is (each == alias()), (each, tables)


@step
def enter_a_tenant() -> None:
    """Create a tenant; all later steps run in its schema, which lacks our tables."""
    if not apps.is_installed("django_tenants"):
        return
    from tests.projects.tenants.models import Domain, Tenant

    tenant = Tenant.objects.create(schema_name="tenant")
    Domain.objects.create(domain="testserver", tenant=tenant)
    connection: Any = connections[alias()]
    connection.set_tenant(tenant)
    tables = connection.introspection.table_names()
    assert "django_content_type" in tables
    assert not any(each.startswith("delayed_queue") for each in tables)


@step
def offer_and_poll() -> None:
    orders = queue("orders")
    orders.offer_batch([_message(each) for each in range(20)])
    batch = orders.try_poll_many(10)
    assert len(batch) == 10
    assert batch.acknowledge() == 10
    for _ in range(5):
        with orders.consume() as envelope:
            assert envelope is not None
    for _ in range(5):
        assert orders.try_poll().acknowledge()
    assert orders.try_poll() is None


def _message(number: int) -> Any:
    from delayed_queue import ScheduledMessage

    return ScheduledMessage(str(number), number)


@step
def watch() -> None:
    """A log of queries and a wrapper change no results, and show statements."""
    connection = connections[alias()]
    seen: list[str] = []

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    with CaptureQueriesContext(connection) as captured, connection.execute_wrapper(wrapper):
        queue("orders").offer_or_update("watched", 1)
        with queue("orders").consume() as envelope:
            assert envelope is not None
    assert seen
    assert any("delayed_queue" in each["sql"] for each in captured.captured_queries)


@step
def work() -> None:
    """A real worker handles messages, also in transactions, and tasks and notifications."""
    from tests.projects.tasks import add

    for name in ("plain", "transacted"):
        queue(name).offer_batch([_message(each) for each in range(30)])
    result, notified = add.enqueue(1, 2), _notified()
    command = [
        sys.executable, "manage.py", "runqueueworker", "--database", alias(), "--burst",
        "--processes", "0",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", 3)
    for name in ("plain", "transacted"):
        assert queue(name).try_poll() is None, done.stderr
    assert len(queue("answers").try_poll_many(100)) == 30
    assert notified is None or notified() == "SUCCESSFULLY_PROCESSED", done.stderr


def _notified() -> Callable[[], str] | None:
    if not apps.is_installed("delayed_queue.notifications"):
        return None
    from delayed_queue.notifications import intake
    from delayed_queue.notifications.models import Notification

    raw = {"channel": "sms", "to": "+40721234567", "body": "Hello"}
    (found,) = intake.accept([raw], tenant="shop")
    assert isinstance(found, intake.Accepted), found
    return lambda: str(Notification.objects.get(pk=found.id).status)


@step
def serve() -> None:
    """A job is added and read over HTTP."""
    from delayed_queue.http.tokens import create_token

    token = create_token("steps", verbs=["add", "read"], topics=["jobs"], using=alias())
    client, headers = Client(), {"Authorization": f"Bearer {token}"}
    body = json.dumps({"topic": "jobs", "jobId": "a", "body": {"a": 1}})
    added = client.post("/queue/v1/jobs", body, content_type="application/json", headers=headers)
    assert added.status_code in (200, 201, 202), (added.status_code, added.content)
    assert client.get("/queue/v1/topics/jobs/jobs/a", headers=headers).status_code == 200


@step
def browse() -> None:
    """The admin shows each list, a row and a confirmation, with title and breadcrumbs."""
    from django.contrib.admin import site
    from django.contrib.auth.models import User

    from tests.admin.support import tokens

    client = Client()
    client.force_login(User.objects.create_superuser("ada"))
    metas = [each._meta for each in site._registry]  # noqa: SLF001
    for each in metas:
        url = reverse(f"admin:{each.app_label}_{each.model_name}_changelist")
        assert client.get(url, follow=True).status_code == 200, url
    queue("browsed").offer_batch([_message(each) for each in range(2)])
    queue("browsed").try_poll().reject("to be browsed")
    messages, letters, queues = (
        reverse(f"admin:delayed_queue_{each}_changelist")
        for each in ("message", "deadletter", "queueoverview")
    )
    _demand(client.get(queues), title=r".*\b1 dead\b", breadcrumb="Queues")
    _demand(client.get(letters), title="Dead letters", breadcrumb="Dead letters")
    page = _demand(client.get(messages), title="Messages", breadcrumb="Messages")
    chosen = {"action": "drop", "_selected_action": tokens(page)}
    confirmation = client.post(messages, chosen)
    _demand(confirmation, title="Drop: are you sure", breadcrumb="Messages")
    [row, *_] = re.findall(r'href="([^"]*/message/[^"]*/change/[^"]*)"', page)
    assert 'form="dq-operate" name="action" value="drop"' in client.get(row, follow=True).text
    assert client.post(messages, {**chosen, "confirmed": "yes"}).status_code == 302
    assert queue("browsed").try_poll() is None


def _demand(response: Any, *, title: str, breadcrumb: str) -> str:
    page = str(response.text)
    [shown] = re.findall(r"<title>\s*(.*?) \|", page)
    assert re.match(title, shown), (title, shown)
    [path, *_] = re.findall(settings.BREADCRUMBS, page, re.DOTALL)
    assert breadcrumb in path, (breadcrumb, path)
    return page


@step
def operate() -> None:
    for name in ("queuestats", "queuehealth", "queuedead"):
        arguments = ["list"] if name == "queuedead" else []
        call_command(name, *arguments, "--database", alias(), stdout=StringIO())


def versions() -> str:
    """Return the versions of this configuration's parts."""
    found = [f"{each} {version(each)}" for each in settings.DISTRIBUTIONS]
    for each in connections.all():
        number = ".".join(map(str, each.get_database_version()))
        found.append(f"{each.display_name} {number}")
    return ", ".join(dict.fromkeys(found))


def main() -> None:
    django.setup()
    sys.stdout.write(f"{versions()}\n")
    for each in STEPS:
        each()
        sys.stdout.write(f"{each.__name__}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
