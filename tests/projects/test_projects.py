"""The package in projects as they are configured (R1 to R4, R9), in databases of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection
from psycopg.conninfo import make_conninfo

from tests.projects.running import PROJECTS, Project, is_right, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.mark.parametrize("project", PROJECTS, ids=[each.module for each in PROJECTS])
def test_every_step_works_or_check_refuses_it(project: Project, tmp_path: Path) -> None:
    found = connection.settings_dict
    server = make_conninfo(
        "",
        user=found["USER"], password=found["PASSWORD"] or None, host=found["HOST"],
        port=found["PORT"] or 5432, dbname=found["NAME"],
    )  # fmt: skip
    outcome = run(project, server, tmp_path)
    assert is_right(project, outcome), outcome.said
