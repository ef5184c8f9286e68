"""The package in real project configurations (R1 to R4, R9), in new databases."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection

from tests.projects.running import PROJECTS, Project, conninfo_of, is_right, run

# `make projects`, a step of `.ci/run`, does the same with more projects.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.long]


@pytest.mark.parametrize("project", PROJECTS, ids=[each.module for each in PROJECTS])
def test_every_step_works_or_check_refuses_it(project: Project, tmp_path: Path) -> None:
    outcome = run(project, conninfo_of(connection.settings_dict), tmp_path)
    assert is_right(project, outcome), outcome.said
