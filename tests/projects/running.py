"""Run the steps under each configuration, in new databases; ``main`` writes the table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import psycopg
from django.conf import settings
from psycopg import sql
from psycopg.conninfo import make_conninfo

from example_project import postgres

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/guides/configurations.md"
MARK: Final = "<!-- written by make projects -->\n"


class Project(NamedTuple):
    """A configuration, and the id of the check that refuses it, if any."""

    module: str
    title: str
    refusal: str = ""


PROJECTS: Final = (
    Project("plain", "Django's defaults"),
    Project("debug", "`DEBUG = True`: a log of all queries"),
    Project("second", "a second PostgreSQL for the package, by a router"),
    Project("sqlite", "SQLite for the project, PostgreSQL for the package"),
    Project("tenants", "django-tenants, the package in `SHARED_APPS`"),
    Project("tenant_apps", "django-tenants, the package in `TENANT_APPS`", "E013"),
    Project("pool", "Django's connection pool"),
    Project("no_tz", "`USE_TZ = False` with notifications", "E015"),
    Project("no_tz_core", "`USE_TZ = False`, without notifications"),
)
# Only `make projects` installs their packages.
THEMES: Final = (
    Project("unfold", "the admin under Unfold"),
    Project("jazzmin", "the admin under Jazzmin"),
    Project("admin_interface", "the admin under django-admin-interface"),
)


class Outcome(NamedTuple):
    """The versions, the successful steps, the exit code, and the output."""

    versions: str
    steps: list[str]
    code: int
    said: str


@contextmanager
def databases(server: str, name: str) -> Iterator[dict[str, str]]:
    """Create two empty databases on a server; yield their URLs by variable."""
    names = {"DATABASE_URL": f"{name}_first", "SECOND_DATABASE_URL": f"{name}_second"}
    with psycopg.connect(server, autocommit=True) as connection:
        try:
            for each in names.values():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(each)))
            yield {variable: url_of(connection.info, each) for variable, each in names.items()}
        finally:
            for each in names.values():
                drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                connection.execute(drop.format(sql.Identifier(each)))


def url_of(server: psycopg.ConnectionInfo, name: str) -> str:
    return postgres.database_url(
        user=server.user, password=server.password, host=server.host, port=server.port, name=name
    )


def run(project: Project, server: str, directory: Path) -> Outcome:
    """Run the steps under the project's settings."""
    with databases(server, f"projects_{project.module}_{os.getpid()}") as urls:
        environment = {
            **os.environ,
            **urls,
            "SQLITE_PATH": str(directory / f"{project.module}.sqlite3"),
            "DJANGO_SETTINGS_MODULE": f"tests.projects.settings.{project.module}",
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.projects.steps"],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    versions, *steps = done.stdout.splitlines() or [""]
    return Outcome(versions, steps, done.returncode, done.stdout + done.stderr)


def is_right(project: Project, outcome: Outcome) -> bool:
    if project.refusal:
        return not outcome.steps and f"(delayed_queue.{project.refusal})" in outcome.said
    return outcome.code == 0


def table(outcomes: Mapping[Project, Outcome]) -> str:
    """Return the table of configurations, versions and results."""
    lines = ["| configuration | versions | result |", "|---|---|---|"]
    for project, outcome in outcomes.items():
        result = f"refused by `check`: {project.refusal}" if project.refusal else "works"
        lines.append(f"| {project.title} | {outcome.versions} | {result} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run all of them, one per processor at a time; write the table if all pass."""
    if settings.EMBEDDED_POSTGRES is not None:
        settings.EMBEDDED_POSTGRES.start()
    server, projects = conninfo_of(settings.DATABASES["default"]), (*PROJECTS, *THEMES)
    with TemporaryDirectory() as directory, ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda each: run(each, server, Path(directory)), projects)
        outcomes = dict(zip(projects, found, strict=True))
    wrong = [each for each, outcome in outcomes.items() if not is_right(each, outcome)]
    for each in wrong:
        sys.stderr.write(f"{each.module}:\n{outcomes[each].said}\n")
    if not wrong:
        before, _, written = PAGE.read_text().partition(MARK)
        _, *behind = written.partition("\n## ")
        PAGE.write_text(f"{before}{MARK}\n{table(outcomes)}{''.join(behind)}")
    return len(wrong)


def conninfo_of(database: Mapping[str, Any]) -> str:
    return make_conninfo(
        "", user=database["USER"], password=database["PASSWORD"] or None, host=database["HOST"],
        port=database["PORT"] or 5432, dbname=database["NAME"],
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
