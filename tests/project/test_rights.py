"""R5: the statements of docs/operations/rights.md suffice for each role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import StringIO
from typing import Any, Final
from uuid import uuid4

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import ProgrammingError, connection
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoDbBlocker

from delayed_queue import DelayedQueue, OfferOutcome, Reject, ScheduledMessage
from delayed_queue.http.tokens import VERBS, create_token
from delayed_queue.models import BulkRun, DeadLetter, Message, Sample
from delayed_queue.notifications.models import Delivery
from delayed_queue.tasks._api import TaskResultStatus, task_backends
from delayed_queue.tasks.keeping import keep_days
from delayed_queue.worker.engine.database import missing_rights
from tests.admin.support import LETTERS, tokens, told
from tests.admin.support import post as act
from tests.http.api.calls import JOB, post
from tests.http.api.conftest import forgetful, new_process
from tests.http.callbacks.conftest import receiver
from tests.http.callbacks.delivering import send_due
from tests.http.callbacks.looking import ways
from tests.http.callbacks.servers import Receiver
from tests.notifications.dispatchers import SENT, dispatch_all
from tests.notifications.dispatching.conftest import dispatch, sms, smtp
from tests.notifications.requests import email, template
from tests.spark.support import job, offer, rows
from tests.support import documents
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with
from tests.tasks.conftest import backend, drained, work

__all__ = ["backend", "dispatch", "forgetful", "new_process", "receiver", "sms", "smtp", "work"]

PAGE: Final = documents.DOCS / "operations/rights.md"
ROLES: Final = re.compile(r"\bqueue_(?:owner|worker|producer|operator)\b")
TO_OWNER: Final = "GRANT queue_owner TO queue_worker;"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("rights"),
]


class Site:
    """A database migrated by the owner, with the documented rights."""

    def __init__(self) -> None:
        self.name = f"rights_{uuid4().hex[:12]}"

    def role(self, name: str) -> str:
        return f"{name}_{self.name}"

    def run(self, statement: str) -> None:
        """Run the statement as a superuser, on the roles of this database."""
        renamed = ROLES.sub(lambda found: self.role(found[0]), statement)
        with self.connected(), connection.cursor() as cursor:
            cursor.execute(renamed)

    @contextmanager
    def connected(self, role: str = "") -> Iterator[None]:
        """Connect this process to the database in a role."""
        database = connection.settings_dict
        kept = {name: database[name] for name in ("NAME", "OPTIONS")}
        options = {"options": f"-c role={self.role(role)}"} if role else {}
        connection.close()
        database |= {"NAME": self.name, "OPTIONS": {**kept["OPTIONS"], **options}}
        try:
            yield
        finally:
            connection.close()
            database |= kept


@pytest.fixture(scope="module")
def site(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Site]:
    made = Site()
    creating, *granting = [each.text for each in documents.blocks(PAGE, "sql")]
    with django_db_blocker.unblock(), ExitStack() as stack:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {made.name} TEMPLATE template0")
        stack.callback(drop, made)
        made.run(creating)
        with made.connected("queue_owner"):
            call_command("migrate", run_syncdb=True, verbosity=0)
            User.objects.create_superuser("root")
        ContentType.objects.clear_cache()
        for each in granting:
            if each.strip() != TO_OWNER:
                made.run(each)
        yield made
        ContentType.objects.clear_cache()


def drop(site: Site) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {site.name} WITH (FORCE)")
        for name in ("worker", "producer", "operator", "owner"):
            cursor.execute(f"DROP ROLE {site.role(f'queue_{name}')}")


@pytest.fixture(autouse=True)
def permitted_by_the_page(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No log line of a test reports a refusal, unless it clears the lines."""
    yield
    assert "permission denied" not in caplog.text
    assert "must be owner" not in caplog.text


class TestTheQueue:
    def test_a_producer_offers_and_deletes_nothing(self, site: Site) -> None:
        queue = DelayedQueue("producing")
        with site.connected("queue_producer"):
            assert queue.offer_or_update("a", 1) is OfferOutcome.CREATED
            assert queue.offer_or_update("a", 2) is OfferOutcome.UPDATED
            assert queue.offer_if_not_exists("a", 3) is OfferOutcome.IGNORED
            assert queue.offer_batch([ScheduledMessage("b", 1)]) == [OfferOutcome.CREATED]
            with pytest.raises(ProgrammingError, match="permission denied"):
                queue.drop_message("a")

    def test_a_worker_delivers_and_keeps_history(self, site: Site) -> None:
        queue = DelayedQueue("working")
        with site.connected("queue_producer"):
            queue.offer_batch([ScheduledMessage(key, key) for key in ("good", "bad", "worse")])

        def handle(envelope: Any) -> None:
            if envelope.key == "bad":
                raise Reject("no")
            if envelope.key == "worse" and envelope.attempt == 1:
                envelope.release()

        with site.connected("queue_worker"):
            worker = worker_with(handler_of("working", handle))
            with running(worker):
                wait_until(lambda: not Message.objects.filter(kind="working|json").exists())
                wait_until(lambda: Sample.objects.filter(kind="").exists())
            assert DeadLetter.objects.get(kind="working|json").key == "bad"
            assert Sample.objects.filter(kind="working|json").exists()

    def test_an_operator_uses_every_page_and_command(self, site: Site) -> None:
        out = StringIO()
        queue = DelayedQueue("operating")
        with site.connected("queue_worker"):
            for key in ("a", "b"):
                queue.offer_or_update(key, None)
                envelope = queue.try_poll()
                assert envelope is not None
                envelope.reject("no")
        with site.connected("queue_operator"):
            client = Client()
            client.force_login(User.objects.get())
            for model in admin.site._registry:  # noqa: SLF001
                if model._meta.app_label.startswith("delayed_queue"):
                    page = reverse(name_of(model))
                    assert client.get(page, follow=True).status_code == 200, page
            found = client.get(f"{LETTERS}?q=a")
            selected = tokens(found.content.decode())
            assert told(act(client, LETTERS, "redrive", selected))
            assert queue.contains_message("a")
            call_command("queuepause", "operating", "--why", "a test", stdout=out)
            call_command("queueresume", "operating", stdout=out)
            call_command("queuestats", stdout=out)
            call_command("queuedead", "redrive", "operating", stdout=out)
            call_command("installcron", "--once", stdout=out)
            assert BulkRun.objects.filter(kind=queue.kind).exists()


def name_of(model: Any) -> str:
    return f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"


class TestApps:
    def test_tasks(self, site: Site, work: Any) -> None:
        with site.connected("queue_producer"):
            result = work.add.enqueue(1, 2)
            ranked = work.add.using(priority=5).enqueue(3)
        with site.connected("queue_worker"):
            drained()
        with site.connected("queue_producer"):
            found = task_backends["default"].get_result(result.id)
            assert (found.status, found.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
            assert task_backends["default"].get_result(ranked.id).is_finished

    @pytest.mark.urls("tests.http.api.urls")
    @pytest.mark.usefixtures("new_process")
    def test_http(self, site: Site, receiver: Receiver, settings: Any) -> None:
        callbacks = {**settings.DELAYED_QUEUE["CALLBACKS"], "ENABLED": True}
        settings.DELAYED_QUEUE = {"API": {"TOPICS": ["orders"]}, "CALLBACKS": callbacks}
        with site.connected("queue_operator"):
            token = create_token("jobs", verbs=VERBS, topics=("*",), rate=100.0)
        client = Client(headers={"Authorization": f"Bearer {token}"})
        with site.connected("queue_producer"):
            data = {**JOB, "url": receiver.url, "body": {"n": 1}}
            for _ in range(2):
                answer = post(client, "/jobs", data, **{"Idempotency-Key": "once"})
                assert answer.status_code in (200, 201, 202), answer.content
        with site.connected("queue_worker"):
            send_due()
            assert ways() == [("a", 1, 200, "")]

    def test_notifications(self, site: Site, dispatch: dict[str, Any]) -> None:
        with site.connected("queue_operator"):
            template().save()
            token = create_token("notifications", verbs=VERBS, topics=("*",))
        client = Client(headers={"Authorization": f"Bearer {token}"})
        with site.connected("queue_producer"):
            answer = client.post(
                "/v1/notifications", email(dedupeKey="a"), content_type="application/json"
            )
            assert answer.status_code == 202, answer.content
            assert client.get(answer["Location"]).status_code == 200
            by_name: dict[str, Any] = {"channel": "email", "to": "ada@example.org"}
            by_name |= {"template": "welcome", "context": {"name": "Ada"}}
            answer = client.post("/v1/notifications", by_name, content_type="application/json")
            assert answer.status_code == 202, answer.content
        with site.connected("queue_worker"):
            assert dispatch_all(2) == {SENT: 2}
            assert Delivery.objects.count() == 2

    def test_offers_of_spark(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        from delayed_queue.spark.database import dsn_from_django
        from delayed_queue.spark.settings import VARIABLE

        with site.connected("queue_producer"):
            monkeypatch.setenv(VARIABLE, dsn_from_django(connection.settings_dict))
            assert offer(job("rights", queue="sparks"), [rows(["a", "b"])]) == 2
            # Repeated keys go through the stage.
            assert offer(job("again", queue="sparks"), [rows(["a", "c", "c"])]) == 3


class TestDays:
    def test_a_worker_makes_them_only_as_a_member_of_the_owner(self, site, caplog):
        with site.connected("queue_worker"):
            assert not keep_days("default")
        assert "task_days_failed" in caplog.text
        caplog.clear()
        site.run(TO_OWNER)
        try:
            with site.connected("queue_worker"):
                assert not missing_rights("default")
                assert keep_days("default")
        finally:
            site.run("REVOKE queue_owner FROM queue_worker;")
        with site.connected("queue_owner"), connection.cursor() as cursor:
            cursor.execute("ALTER TABLE delayed_queue_task_result ADD COLUMN extra int")
            cursor.execute("ALTER TABLE delayed_queue_task_result DROP COLUMN extra")

    def test_it_is_named_before_it_is_needed(self, site: Site) -> None:
        lacking = "OWNER of delayed_queue_sample"
        with site.connected("queue_worker"):
            assert lacking in [str(each) for each in missing_rights("default")]
            assert lacking in checked()
            assert lacking in health()


class TestWhatIsMissing:
    def test_an_owner_lacks_nothing(self, site: Site) -> None:
        with site.connected("queue_owner"):
            assert "W014" not in checked()
            assert "rights of a worker" not in health()

    def test_the_page_has_every_table(self, site: Site) -> None:
        """Only the right to create days is missing."""
        for role in ("queue_worker", "queue_operator"):
            with site.connected(role):
                assert {each.privilege for each in missing_rights("default")} <= {"OWNER"}

    @pytest.mark.parametrize("table", ["delayed_queue", "delayed_queue_task_result_rest"])
    def test_each_right_is_named(self, site: Site, table: str, settings: Any) -> None:
        site.run(f"REVOKE DELETE ON {table} FROM queue_worker;")
        try:
            with site.connected("queue_worker"):
                assert f"DELETE on {table}" in checked()
                assert f"DELETE on {table}" in health()
                settings.SILENCED_SYSTEM_CHECKS = ["delayed_queue.W014"]
                assert "DELETE" not in checked() + health()
        finally:
            site.run(f"GRANT DELETE ON {table} TO queue_worker;")


def checked() -> str:
    out = StringIO()
    call_command("check", "--database", "default", "--tag", "database", stdout=out, stderr=out)
    return out.getvalue()


def health() -> str:
    out = StringIO()
    with suppress(SystemExit):
        call_command("queuehealth", stdout=out)
    return out.getvalue()
