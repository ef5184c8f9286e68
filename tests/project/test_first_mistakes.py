"""Beginners' mistakes in a small project: `check` answers each with one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.sampling import sample

SETTINGS = """
import sys
{lines}
SECRET_KEY = "x"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "delayed_queue", {apps}]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.{engine}", "NAME": "nowhere"}}}}
"""
BACKEND = '"BACKEND": "delayed_queue.tasks.DelayedQueueBackend"'
NOTIFICATIONS, TASKS = "delayed_queue.notifications", "delayed_queue.tasks"
WITH_ADMIN = f"{NOTIFICATIONS} django.contrib.messages django.contrib.sessions django.contrib.admin"
UNKNOWN = "DELAYED_QUEUE = {'NOTIFICATIONS': {'RETENTON': 1}}"
UNKNOWN_SAID = "(delayed_queue.E001) DELAYED_QUEUE['NOTIFICATIONS'] has an unknown key 'RETENTON'."
QUIET = "SILENCED_SYSTEM_CHECKS = ['admin.E403', 'admin.E408', 'admin.E409', 'admin.E410']; "


def run(folder: Path, *command: str, lines: str, apps: str = "", engine: str = "postgresql") -> str:
    """Return the command's output in a project with these settings."""
    listed = ", ".join(repr(each) for each in apps.split())
    text = SETTINGS.format(lines=lines, apps=listed, engine=engine)
    (folder / "mistaken.py").write_text(text, encoding="utf-8")
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "mistaken",
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
    }
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr


MISTAKES = {
    "list with notifications": (
        NOTIFICATIONS, "DELAYED_QUEUE = []", "(delayed_queue.E001) DELAYED_QUEUE must be a dict."
    ),
    "unknown key": (WITH_ADMIN, QUIET + UNKNOWN, UNKNOWN_SAID),
    "no extra": (
        WITH_ADMIN, f"{QUIET}sys.modules['phonenumbers'] = None",
        "(delayed_queue.E008) delayed_queue.notifications needs the package phonenumbers, which",
    ),
    "option": (
        TASKS, f"TASKS = {{'default': {{{BACKEND}, 'OPTIONS': {{'RESULT': '7d'}}}}}}",
        "(delayed_queue.E006) TASKS['default']: OPTIONS has an unknown key 'RESULT'. Did you",
    ),
    "queues": (
        TASKS, f"TASKS = {{'default': {{{BACKEND}, 'QUEUES': 'mail'}}}}",
        "(delayed_queue.E006) TASKS['default']: QUEUES must be a list of names, not a str.",
    ),
    "entry as a text": (
        TASKS, "TASKS = {'default': 'x'}",
        "(delayed_queue.E006) TASKS['default'] must be a dict with the path of a class as",
    ),
    "path": (
        TASKS, "TASKS = {'default': {'BACKEND': 'delayed_queue.tasks.Backned'}}",
        "(delayed_queue.E006) TASKS['default']: 'BACKEND' cannot be imported: ",
    ),
}  # fmt: skip
# Each starts a process: every day one of the core, one of an extra, and one of tasks.
EVERYDAY = ("list with notifications", "no extra", "option")


@pytest.mark.parametrize("name", sample(MISTAKES, *EVERYDAY))
def test_check_says_it_once(tmp_path: Path, name: str) -> None:
    apps, lines, said = MISTAKES[name]
    found = run(tmp_path, "-m", "django", "check", lines=lines, apps=apps)
    assert said in found
    assert "Traceback" not in found
    assert "identified 1 issue" in found
    assert "import" not in found.partition("HINT")[2]


@pytest.mark.parametrize(
    "command", sample(["consumenotifications", "prunenotifications"], "prunenotifications")
)
def test_commands_say_it_once(tmp_path: Path, command: str) -> None:
    found = run(tmp_path, "-m", "django", command, lines=UNKNOWN, apps=NOTIFICATIONS)
    assert UNKNOWN_SAID in found
    assert "Traceback" not in found


def test_a_missing_module_that_is_not_of_the_extra_is_not_hidden(tmp_path: Path) -> None:
    lines = f"{QUIET}sys.modules['delayed_queue.notifications.managing'] = None"
    found = run(tmp_path, "-m", "django", "check", lines=lines, apps=WITH_ADMIN)
    assert "import of delayed_queue.notifications.managing halted" in found


@pytest.mark.parametrize("tasks", sample(["['x']", "{'default': 'x'}"], "['x']"))
def test_the_core_alone_leaves_the_tasks_of_others_alone(tmp_path: Path, tasks: str) -> None:
    found = run(tmp_path, "-m", "django", "check", lines=f"TASKS = {tasks}")
    assert "identified no issues" in found


def test_check_names_the_line_of_the_project_and_not_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "shop/handlers.py").write_text("import json\n\njson.loads('{')\n", encoding="utf-8")
    found = run(tmp_path, "-m", "django", "check", lines="", apps="shop")
    assert f"({tmp_path}/shop/handlers.py, line 3)" in found


@pytest.mark.parametrize(
    "call", ["DelayedQueue('orders').offer_or_update('k', 1)", "noop.enqueue()"]
)
def test_a_queue_on_sqlite_names_the_database_that_it_needs(tmp_path: Path, call: str) -> None:
    program = (
        "import django; django.setup()\n"
        "from delayed_queue import DelayedQueue\n"
        "from delayed_queue.tasks._api import task\n"
        f"@task\ndef noop():\n    pass\n{call}"
    )
    lines = f"TASKS = {{'default': {{{BACKEND}}}}}"
    found = run(tmp_path, "-c", program, lines=lines, apps=TASKS, engine="sqlite3")
    assert "InvalidConfiguration: The database 'default' is sqlite; delayed_queue needs" in found
