"""A project with `delayed_queue` as its only app: tables, admin, commands, settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from django.db import connection
from psycopg import sql

from tests.support.concurrency import raw_connection
from tests.support.processes import Process, database_url, environment

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
SETTINGS = "tests.queue_only.settings"


@pytest.fixture
def project() -> Iterator[dict[str, str]]:
    """The environment of such a project, on its own empty database."""
    name = f"{connection.settings_dict['NAME']}_queue_only"
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with raw_connection() as server:
        server.execute(drop)
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        found = connection.settings_dict
        kept, found["NAME"] = found["NAME"], name
        url = database_url()
        found["NAME"] = kept
        yield {
            **os.environ,
            **environment(),
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": SETTINGS,
        }
        server.execute(drop)


def test_it_works_from_end_to_end(project: dict[str, str]) -> None:
    code, said = Process(sys.executable, "-m", "tests.queue_only.visit", env=project).ended()
    assert code == 0, said
    assert "wrong pages []\n" in said
    assert (
        "models ['bulkrun', 'deadletter', 'message', 'queueoverview', 'schedule', 'storedbatch', "
        "'worker']\n" in said
    )
    assert "redriven 1\n" in said
    assert sorted(line for line in said.splitlines() if line.startswith("closed")) == [
        "closed one",
        "closed two",
    ]
    assert "left 0\n" in said


def test_the_section_of_an_app_that_is_not_there_is_told_of(project: dict[str, str]) -> None:
    script = (
        "import django; django.setup()\n"
        "from delayed_queue.conf import find_problems\n"
        "[problem] = find_problems({'API': {'TOPICS': ['orders']}})\n"
        "print(problem.message, problem.hint)"
    )
    code, said = Process(sys.executable, "-c", script, env=project).ended()
    assert code == 0, said
    assert "has an unknown key 'API'" in said
    assert "where the app is in INSTALLED_APPS" in said
