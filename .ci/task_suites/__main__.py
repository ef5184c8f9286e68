"""Run the tests of others on the backend of tasks: Django's own, and those of django-tasks-db.

    python .ci/task_suites django                        # its sdist comes from the package index
    python .ci/task_suites django-tasks-db CHECKOUT      # a clone of its repository

Nothing of theirs is kept: a copy is changed where it names what is its own, run on an embedded
PostgreSQL or that of DATABASE_URL, and deleted. What does not apply is listed with its reason in
`stand_in.py`. Django's tests are those of the Django that runs them: 6.0 or newer.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
sys.path.insert(0, str(ROOT))
OURS: Final = "delayed_queue.tasks.DelayedQueueBackend"

# What is written in the place of what, in Django's tests.
OF_DJANGO: Final = (
    (r"django\.tasks\.backends\.dummy(\.| )", r"stand_in\1"),
    (r"django\.tasks\.backends\.immediate(\.| )", r"stand_in\1"),
    # There is a database to be asked, from several threads.
    (r"SimpleTestCase", "TransactionTestCase"),
    (r"TransactionTestCase, TransactionTestCase", "TransactionTestCase"),
    (r"\n    available_apps = \[\]\n", "\n"),
)
# And in those of django-tasks-db.
OF_TASKS_DB: Final = (
    (
        r"(?s)from django_tasks_db import .*?from tests import",
        "from stand_in import *\nfrom tests import",
    ),
    (r'"django_tasks_db\.DatabaseBackend"', f'"{OURS}"'),
    # Ids of ours say when; queries of a worker are its own affair, and on connections of its own.
    (r"\.version, 4\)", ".version, 7)"),
    (r"with self\.assertNumQueries\(\d+ if [^)]*\):", "with contextlib.nullcontext():"),
    (r'call_command,\n\s+"db_worker",', "call_command,\n            Worked(),"),
    (r"batch=True,\n\s+interval=0,\n\s+startup_delay=False,", "batch=True,"),
    (
        r'"-m",\n\s+"manage",\n\s+"db_worker",',
        '"-c", "import django; django.setup(); import stand_in; stand_in.main()", "db_worker",',
    ),
    # The announcement of a message goes with it, in one round trip.
    (
        r"with self\.subTest\(task\), self\.assertNumQueries\(1\):",
        "with self.subTest(task), self.assertNumQueries(2):",
    ),
    (
        r"with self\.assertNumQueries\(1\):(\n\s+result = default_task_backend)",
        r"with self.assertNumQueries(2):\1",
    ),
    # Times for a machine that does other work, too.
    (r"WORKER_STARTUP_TIME = 1", "WORKER_STARTUP_TIME = 5"),
    (r"sleep_for\.enqueue\(2\)", "sleep_for.enqueue(10)"),
    (r"wait\(timeout=[\d.]+\)", "wait(timeout=30)"),
    # Words of theirs, and of their command's output.
    (r'"django_tasks_db", errors', '"delayed_queue.tasks", errors'),
    (r'"is not JSON serializable"', '"Unsupported type"'),
    (r'\n\s+self\.assertIn\("Run maximum tasks \(2\)", stdout\.getvalue\(\)\)', ""),
)


def main() -> None:
    which, *where = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="task-suites-") as made:
        directory = Path(made)
        if which == "django":
            run(directory, of_django(directory))
        else:
            run(directory, of_tasks_db(directory, Path(where[0])))


def of_django(directory: Path) -> str:
    """Put Django's tests of tasks into the directory, changed; return the label to run."""
    import django

    wanted = f"django=={django.__version__}"
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
    subprocess.run(  # noqa: S603
        [*pip, "--no-binary", "django", "--dest", str(directory), wanted], check=True
    )
    with tarfile.open(next(directory.glob("*.tar.gz"))) as archive:
        archive.extractall(directory, filter="data")
    shutil.copytree(next(directory.glob("django-*/tests/tasks")), directory / "tasks")
    for path in (directory / "tasks").glob("*.py"):
        change(path, OF_DJANGO)
    return "tasks"


def of_tasks_db(directory: Path, checkout: Path) -> str:
    shutil.copytree(checkout / "tests", directory / "tests")
    change(directory / "tests" / "tests.py", OF_TASKS_DB)
    worker = "from suite_settings import *\nDATABASES['default']['NAME'] = TESTED\n"
    (directory / "tests" / "db_worker_test_settings.py").write_text(worker)
    return "tests.tests"


def change(path: Path, edits: tuple[tuple[str, str], ...]) -> None:
    text = path.read_text()
    for pattern, replacement in edits:
        text = re.sub(pattern, replacement, text)
    path.write_text(text)


def run(directory: Path, label: str) -> None:
    """Run the suite in the directory, on a database of its own; end with its exit code."""
    from benchmarks.shared.database import embedded_server

    paths = (str(directory), str(HERE), str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment = {
        "DATABASE_URL": os.environ.get("DATABASE_URL") or embedded_server(),
        "DJANGO_SETTINGS_MODULE": "suite_settings",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "SECRET_KEY": "for tests only",
    }
    command = (sys.executable, "-W", "ignore", "-m", "django", "test", "--noinput", label)
    done = subprocess.run(command, cwd=directory, env=os.environ | environment)  # noqa: S603
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
