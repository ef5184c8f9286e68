"""The check command provokes each system check; unused features provoke none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client
from django.urls import clear_url_caches
from pytest_django import Settings

from delayed_queue import CronEntry
from delayed_queue.checks import check_time_zone
from delayed_queue.cron.registry import crontab
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.handlers import registry
from delayed_queue.notifications.conf import CONSOLES
from delayed_queue.tasks.apps import check_backends
from tests.cron.test_without_zones import NO_ZONES
from tests.support import documents
from tests.support.missing import not_installed
from tests.support.processes import ROOT

IDS = {
    documents.code(row[0])
    for row in documents.table(documents.DOCS / "reference/settings.md", "id", "meaning")
}
HASHED: Final = {"NOTIFICATIONS": {"HASH_KEY": "a key"}}
SERVED: Final[dict[str, Any]] = {
    "API": {"TOPICS": ["orders"]},
    "CALLBACKS": {"ENABLED": False},
} | HASHED


class Elsewhere:
    """Routes the package to one alias, and its tables to no other."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return self.alias if model._meta.app_label.startswith("delayed_queue") else None

    db_for_read = db_for_write

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == self.alias if app_label.startswith("delayed_queue") else None


def check(*arguments: str) -> str:
    """Return the output of the command, also if it fails."""
    out, err = StringIO(), StringIO()
    try:
        call_command("check", *arguments, stdout=out, stderr=err)
    except CommandError as error:
        err.write(str(error))
    return out.getvalue() + err.getvalue()


def ids(said: str) -> set[str]:
    return {each for each in IDS if f"({each})" in said}


@pytest.fixture
def broken(settings: Settings) -> Iterator[None]:
    """Install an app whose handlers cannot be imported."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.brokenapp"]
    yield
    settings.INSTALLED_APPS = settings.INSTALLED_APPS[:-1]
    assert not registry.failures


SITE = """
from django.http import HttpResponse
from django.urls import include, path
urlpatterns = [
    path('queue/', include('delayed_queue.http.urls')),
    path('home', lambda request: HttpResponse('here')),
]
"""


@pytest.fixture
def without_msgspec(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Mount the API without its extra, beside a page of the site."""
    site = ModuleType("site_without_msgspec")
    monkeypatch.setitem(sys.modules, site.__name__, site)
    with not_installed("msgspec", "delayed_queue.http.api", "delayed_queue.http.urls"):
        exec(SITE, vars(site))  # noqa: S102 # our own lines
        settings.ROOT_URLCONF = site.__name__
        clear_url_caches()
        yield
    clear_url_caches()


# The settings that provoke each check.
PROVOKED: Final[dict[str, dict[str, Any]]] = {
    "E001": {"LEASE_DURATIONS": 5},
    "E003": SERVED | {"INSTRUMENTS": ["delayed_queue.nope"]},
    "E004": SERVED | {"API": {**SERVED["API"], "PUBLIC": True}},
    "E008": SERVED | {"NOTIFICATIONS": {"HASH_KEY": "k", "SECRETS": ["wrong"]}},
    "W005": SERVED | {"CRON": [{"queue": "leger", "key_prefix": "h", "schedule": "@hourly"}]},
    "W008": SERVED
    | {
        "NOTIFICATIONS": {
            "HASH_KEY": "k",
            "PROVIDERS": {channel: CONSOLES[channel] for channel in ("email", "sms")},
        }
    },
    "W009": {name: SERVED[name] for name in ("API", "CALLBACKS")},
    "W015": SERVED
    | {
        "NOTIFICATIONS": {
            "HASH_KEY": "k",
            "PROVIDERS": {
                **CONSOLES,
                "email": [{"kind": "email", "name": "a", "sender": "a@b.de"}],
            },
        }
    },
}
# The changes of the backend of tasks that provoke each check.
PROVOKED_BY_TASKS: Final[dict[str, dict[str, Any]]] = {
    "E009": {"QUEUES": ["ledger"]},
    "E010": {"OPTIONS": {"DATABASE": "nope"}},
    "E011": {"QUEUES": []},
    "W010": {},
}


def with_tasks(settings: Settings, **more: Any) -> None:
    settings.DELAYED_QUEUE = SERVED
    backend = {"BACKEND": "delayed_queue.tasks.DelayedQueueBackend", "QUEUES": ["mail"], **more}
    settings.TASKS = {"default": backend}


class TestEachId:
    @pytest.mark.parametrize("name", PROVOKED)
    def test_of_settings(self, name: str, settings: Settings) -> None:
        settings.DELAYED_QUEUE = SERVED
        assert ids(check("--deploy")) == set()
        settings.DELAYED_QUEUE = PROVOKED[name]
        assert ids(check("--deploy")) == {f"delayed_queue.{name}"}

    @pytest.mark.parametrize("pool", [True, {"max_size": 13}, {"min_size": 2}])
    def test_w21_of_a_pool_that_is_too_small(self, pool, monkeypatch):
        """A worker needs its 8 handler threads and 6 more."""
        monkeypatch.setitem(connections["default"].settings_dict["OPTIONS"], "pool", pool)
        said = check()
        assert ids(said) == {"delayed_queue.W012"}
        assert "a worker needs 14" in said
        monkeypatch.setitem(
            connections["default"].settings_dict["OPTIONS"], "pool", {"max_size": 14}
        )
        assert not ids(check())

    @pytest.mark.parametrize("name", PROVOKED_BY_TASKS)
    def test_of_tasks(self, name: str, settings: Settings) -> None:
        with_tasks(settings, **PROVOKED_BY_TASKS[name])
        if name == "W010":
            settings.DELAYED_QUEUE = {"API": {**SERVED["API"], "TOPICS": ["mail"]}}
        found = {each.id for each in check_backends()}
        assert found == {f"delayed_queue.{name}"}

    def test_of_tasks_without_their_app(self, settings: Settings) -> None:
        with_tasks(settings)
        settings.INSTALLED_APPS = [
            each for each in settings.INSTALLED_APPS if each != "delayed_queue.tasks"
        ]
        assert ids(check()) == {"delayed_queue.E012"}
        assert not check_backends()

    @pytest.mark.django_db
    def test_of_databases(self, monkeypatch: pytest.MonkeyPatch) -> None:
        default = vars(connections["default"])
        with monkeypatch.context() as patched:
            patched.setitem(default, "pg_version", 120_017)
            assert ids(check("--database", "default")) == {"delayed_queue.W003"}
        monkeypatch.setitem(default, "vendor", "sqlite")
        for arguments in ([], ["--database", "default"]):
            assert ids(check(*arguments)) == {"delayed_queue.E002"}

    def test_of_a_database_that_is_not_the_default(self, lite: str) -> None:
        assert ids(check()) == set()
        assert ids(check("--database", lite, "--tag", "database")) == {"delayed_queue.W002"}

    @pytest.mark.django_db
    def test_of_databases_that_the_router_keeps_the_tables_off(self, lite, settings):
        settings.DATABASE_ROUTERS = [Elsewhere("default")]
        assert ids(check("--database", lite, "--tag", "database")) == set()
        settings.DATABASE_ROUTERS = [Elsewhere(lite)]
        assert ids(check()) >= {"delayed_queue.E002", "delayed_queue.E014"}

    @pytest.mark.django_db
    def test_w014_of_a_role_without_rights(self) -> None:
        with connections["default"].cursor() as cursor:
            role = f"no_rights_{os.getpid()}"
            cursor.execute(f"CREATE ROLE {role}")
            cursor.execute(f"SET LOCAL ROLE {role}")
            said = check("--database", "default", "--tag", "database")
            cursor.execute("RESET ROLE")
        assert ids(said) == {"delayed_queue.W014"}
        assert "UPDATE on delayed_queue," in said

    def test_of_a_setting_and_a_router_that_contradict_each_other(self, lite, settings):
        assert connections[lite].vendor == "sqlite"
        settings.DELAYED_QUEUE = SERVED | {"API": {"TOPICS": ["orders"], "DATABASE": lite}}
        assert ids(check()) == {"delayed_queue.W013"}
        settings.DATABASE_ROUTERS = [Elsewhere("default")]
        assert ids(check()) == {"delayed_queue.E014"}

    def test_of_tenants(self, settings: Settings) -> None:
        settings.SHARED_APPS, settings.TENANT_APPS = ["delayed_queue"], ["django.contrib.auth"]
        assert ids(check()) == set()
        settings.TENANT_APPS = ["delayed_queue.apps.DelayedQueueConfig"]
        assert ids(check()) == {"delayed_queue.E013"}

    def test_of_times_without_a_zone(self, settings: Settings) -> None:
        settings.USE_TZ = False
        assert ids(check()) == {"delayed_queue.E015"}
        assert "the times of delayed_queue.notifications" in str(check_time_zone())

    @pytest.mark.django_db
    @pytest.mark.usefixtures("broken")
    def test_of_handlers(self) -> None:
        said = check()
        assert ids(said) == {"delayed_queue.E006"}
        assert "tests.brokenapp.handlers cannot be imported: ModuleNotFoundError" in said
        assert "tests/brokenapp/handlers.py, line 5)." in said
        # As migrate calls it, which must continue.
        assert ids(check("--database", "default")) == {"delayed_queue.W006"}

    @pytest.mark.usefixtures("without_msgspec")
    def test_of_the_api_without_its_extra(self) -> None:
        said = check("--deploy")
        assert ids(said) - {"delayed_queue.W009"} == {"delayed_queue.E007"}
        assert "needs the extra [http]: pip install 'django-delayed-queue[http]'" in said

    def test_every_id_of_the_page_has_a_case_here(self) -> None:
        source = Path(__file__).read_text(encoding="utf-8")
        assert {each for each in IDS if each.removeprefix("delayed_queue.") in source} == IDS


class TestHandlers:
    @pytest.mark.usefixtures("broken")
    def test_a_worker_refuses_to_start(self) -> None:
        with pytest.raises(CommandError, match=r"Handlers are missing\. tests\.brokenapp"):
            call_command("runqueueworker", "--queue", "ledger")

    def test_it_is_logged_for_web_processes(self, settings, caplog):
        with caplog.at_level("ERROR", "delayed_queue"):
            settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.brokenapp"]
        settings.INSTALLED_APPS = settings.INSTALLED_APPS[:-1]
        [line] = [each.getMessage() for each in caplog.records]
        assert line.startswith('event=handlers_failed module=tests.brokenapp.handlers error="')

    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            ("import nothing_of_this_name", "ModuleNotFoundError: No module named"),
            ("def (", "SyntaxError: "),
            ("from delayed_queue import handler\n@handler('orders')\ndef close(): ...",
             "called with one argument, the envelope; slipping.handlers.close() cannot be"),
        ],
        ids=["import", "syntax", "no argument"],
    )  # fmt: skip
    def test_whatever_is_wrong_in_a_module_is_said_with_its_place(
        self, lines, said, tmp_path, settings, monkeypatch
    ):
        (tmp_path / "slipping").mkdir()
        (tmp_path / "slipping/__init__.py").touch()
        (tmp_path / "slipping/handlers.py").write_text(lines, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "slipping"]
        found = check()
        settings.INSTALLED_APPS = settings.INSTALLED_APPS[:-1]
        del sys.modules["slipping"]
        assert ids(found) == {"delayed_queue.E006"}
        assert said in found
        assert ", line " in found

    def test_the_handlers_of_the_other_apps_are_there(self, broken: None) -> None:
        assert apps.is_installed("tests.brokenapp")
        assert registry.get("ledger").queue == "ledger"


@pytest.mark.usefixtures("without_msgspec")
def test_the_rest_of_a_site_without_the_extra_goes_on(client: Client) -> None:
    assert client.get("/home").content == b"here"
    with pytest.raises(InvalidConfiguration, match=r"needs the extra \[http\]"):
        client.get("/queue/v1/jobs")


class TestSchedules:
    @pytest.mark.parametrize(
        ("entry", "said"),
        [
            ({"queue": "ledger"}, ""),
            ({"queue": "ledgr"}, "The queue 'ledgr' has no handler. Did you mean 'ledger'?"),
            (
                {"queue": "ledger", "codec": "text"},
                "The handler of the queue 'ledger' takes 'ledger|json', not 'ledger|text'.",
            ),
        ],
    )
    def test_ticks_that_no_handler_takes_are_warned_about(self, entry, said):
        declared = CronEntry(key_prefix="p", schedule="@daily", declared_in="here", **entry)
        crontab.add(declared)
        try:
            found = check()
        finally:
            crontab.remove(declared)
        assert ids(found) == ({"delayed_queue.W005"} if said else set())
        assert said in found


SETTINGS = """
SECRET_KEY = "x" * 60
DEBUG = True
ROOT_URLCONF = __name__
urlpatterns = []
INSTALLED_APPS = ["delayed_queue"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.{engine}", "NAME": "nothing.db"}}}}
"""
MANAGE = """
import sys
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""


@pytest.mark.slow
class TestEmptyProject:
    """A real ``check`` in a project with only this app."""

    def said(self, directory: Path, engine: str, before: str = "") -> tuple[int, str]:
        (directory / "alone.py").write_text(SETTINGS.format(engine=engine), encoding="utf-8")
        (directory / "manage.py").write_text(before + MANAGE, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "manage.py", "check", "--deploy"],
            cwd=directory, timeout=60, check=False, text=True, capture_output=True,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "alone", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    def test_it_is_not_told_of_an_api_that_it_has_not(self, tmp_path: Path) -> None:
        code, said = self.said(tmp_path, "postgresql")
        assert (code, ids(said)) == (0, set())
        assert "security.W018" in said  # DEBUG is on

    def test_it_is_told_of_sqlite_without_being_asked_and_of_missing_zones(self, tmp_path):
        code, said = self.said(tmp_path, "sqlite3", NO_ZONES)
        assert (code, ids(said)) == (1, {"delayed_queue.E002", "delayed_queue.W004"})


def test_a_database_of_another_kind_beside_ours_makes_no_warning(lite, django_db_blocker):
    """Django would warn about constraints that SQLite, or PostgreSQL 13, does not support."""
    with django_db_blocker.unblock():
        assert "models.W" not in check("--database", lite)
