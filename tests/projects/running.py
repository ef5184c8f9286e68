"""Run the steps under each configuration, in databases of its own; ``main`` writes the table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import django
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from example_project import postgres

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/guides/configurations.md"
MARK: Final = "<!-- written by make projects -->\n"


class Project(NamedTuple):
    """A configuration, and the id of the check that refuses it, if one does."""

    module: str
    title: str
    refusal: str = ""


PROJECTS: Final = (
    Project("plain", "Django's defaults"),
    Project("debug", "`DEBUG = True`: a log of all queries"),
    Project("second", "a second PostgreSQL for the package, by a router"),
    Project("sqlite", "SQLite for the project, PostgreSQL for the package"),
    Project("tenants", "a backend that sets `search_path` in `cursor()`, `SHARED_APPS`"),
    Project("tenant_apps", "the same, the package in `TENANT_APPS`", "E013"),
    Project("pool", "Django's connection pool"),
    Project("no_tz", "`USE_TZ = False` with notifications", "E015"),
    Project("no_tz_core", "`USE_TZ = False`, without notifications"),
)


class Outcome(NamedTuple):
    """The steps that worked, the exit code, and all that was printed."""

    steps: list[str]
    code: int
    said: str


@contextmanager
def databases(server: str, name: str) -> Iterator[dict[str, str]]:
    """Make two empty databases on a server; yield their URLs by variable."""
    names = {"DATABASE_URL": f"{name}_first", "SECOND_DATABASE_URL": f"{name}_second"}
    with psycopg.connect(server, autocommit=True) as connection:
        for each in names.values():
            _drop(connection, each)
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(each)))
        try:
            yield {variable: url_of(server, each) for variable, each in names.items()}
        finally:
            for each in names.values():
                drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(
                    sql.Identifier(each)
                )
                connection.execute(drop)


def _drop(connection: psycopg.Connection[Any], name: str) -> None:
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    connection.execute(drop)


def url_of(server: str, name: str) -> str:
    found = conninfo_to_dict(server)
    return postgres.database_url(
        user=str(found["user"]),
        password=str(found.get("password", "")),
        host=str(found["host"]),
        port=int(found.get("port") or 5432),
        name=name,
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
    return Outcome(done.stdout.splitlines(), done.returncode, done.stdout + done.stderr)


def is_right(project: Project, outcome: Outcome) -> bool:
    if project.refusal:
        return not outcome.steps and f"(delayed_queue.{project.refusal})" in outcome.said
    return outcome.code == 0


def table(outcomes: dict[Project, Outcome], version: str) -> str:
    """Return the table of configurations, versions and results."""
    python = ".".join(map(str, sys.version_info[:2]))
    versions = f"Python {python}, Django {django.__version__}, PostgreSQL {version}"
    lines = ["| configuration | result |", "|---|---|"]
    for project, outcome in outcomes.items():
        result = f"refused by `check`: {project.refusal}" if project.refusal else "works"
        result = result if is_right(project, outcome) else "**does not work**"
        lines.append(f"| {project.title} | {result} |")
    return f"{versions}; psycopg {psycopg.__version__}.\n\n" + "\n".join(lines) + "\n"


def write(outcomes: dict[Project, Outcome], version: str) -> None:
    before, _, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(before + MARK + "\n" + table(outcomes, version))


def main() -> int:
    """Run all of them on the tests' server, and write the table."""
    from tests import settings

    server = settings.EMBEDDED_POSTGRES.socket_url if settings.EMBEDDED_POSTGRES else ""
    dsn = conninfo_of(server or os.environ["DATABASE_URL"])
    with TemporaryDirectory() as directory, psycopg.connect(dsn) as connection:
        version = str(connection.info.server_version // 10_000)
        outcomes = {each: run(each, dsn, Path(directory)) for each in PROJECTS}
    write(outcomes, version)
    wrong = [each for each, outcome in outcomes.items() if not is_right(each, outcome)]
    for each in wrong:
        sys.stderr.write(f"{each.module}:\n{outcomes[each].said}\n")
    return len(wrong)


def conninfo_of(url: str) -> str:
    from example_project.settings import database

    found = database(url)
    return make_conninfo(
        "", user=found["USER"], password=found["PASSWORD"] or None, host=found["HOST"],
        port=found["PORT"] or 5432, dbname=found["NAME"],
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
