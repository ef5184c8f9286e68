"""Imports without Django, and before its apps are ready."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import delayed_queue

ROOT = Path(delayed_queue.__file__).parent.parent
CORE = [
    "codecs", "cron.registry", "cron.rules", "cron.schedules", "db.sql", "exceptions", "handlers",
    "messages", "queue.store.settle", "retries",
]  # fmt: skip
# The public names, with their modules for type checkers.
HOMES = {
    name: home
    for home, name in re.findall(
        r"from delayed_queue\.(\S+) import (\w+) as", inspect.getsource(delayed_queue)
    )
}
# A finder in front of all others: as if Django were not installed.
REFUSE_DJANGO = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"django", "asgiref", "psycopg"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def run(code: str) -> str:
    """Run in a new interpreter without settings; return its output."""
    environment = {
        name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_core_imports_without_django():
    imports = "\n".join(f"import delayed_queue.{name}" for name in CORE)
    assert run(f"{REFUSE_DJANGO}\n{imports}\nprint('imported')") == "imported\n"


def test_what_runs_statements_is_not_loaded_by_a_question():
    """Pickling and debuggers read names from modules that may lack them."""
    code = "from delayed_queue import db\nprint(hasattr(db, '__wrapped__'), hasattr(db, 'connect'))"
    assert run(REFUSE_DJANGO + code) == "False False\n"


def test_the_public_names_without_django_are_there_without_it():
    names = sorted(set(HOMES) - {"DelayedQueue", "MessageBatch"})
    code = f"from delayed_queue import {', '.join(names)}\nprint(Snooze.__module__)"
    assert run(REFUSE_DJANGO + code) == "delayed_queue.handlers\n"


def test_the_wrapper_of_asgi_is_imported_before_the_apps_are_ready():
    """A project's ASGI module imports it before all else."""
    code = """
from django.conf import settings
settings.configure()
from delayed_queue.http.api.asgi import GuardedApplication
print(GuardedApplication.__name__)
"""
    assert run(code) == "GuardedApplication\n"


def test_the_package_imports_nothing_until_it_is_asked():
    code = (
        "import delayed_queue, sys\n"
        "print([name for name in sys.modules if name.startswith(('delayed_queue.', 'django'))])"
    )
    assert run(code) == "[]\n"


@pytest.mark.parametrize("name", sorted(HOMES))
def test_each_public_name_comes_from_its_home(name: str):
    found = getattr(delayed_queue, name)
    assert found.__name__ == name
    assert found.__module__.startswith(f"delayed_queue.{HOMES[name]}")


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match="'delayed_queue' has no attribute 'Jobs'"):
        _ = delayed_queue.Jobs
    with pytest.raises(ImportError):
        from delayed_queue import Tasks  # noqa: F401


def test_the_public_names_are_listed():
    assert set(dir(delayed_queue)) == set(delayed_queue.__all__)
    assert {"__version__", "DelayedQueue", "handler"} <= set(dir(delayed_queue))


def test_type_checkers_see_the_same_names():
    assert set(HOMES) == set(delayed_queue.__all__) - {"__version__"}
