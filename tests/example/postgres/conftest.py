"""Private servers, for every installed PostgreSQL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from example_project.postgres import EmbeddedPostgres, installed_binaries
from example_project.postgres.binaries import version_of
from tests.example.postgres.support import SMALL
from tests.support.sampling import sample
from tests.support.servers import copy_tree

INSTALLED = list(installed_binaries())


@pytest.fixture
def base() -> Iterator[Path]:
    """An empty directory that other accounts can enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="dq-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(params=sample(INSTALLED, *INSTALLED[:1]), ids=version_of)
def fresh(
    request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EmbeddedPostgres]:
    """A server without a data directory, for every installed PostgreSQL."""
    monkeypatch.setenv("DELAYED_QUEUE_PG_BIN", str(request.param))
    server = EmbeddedPostgres(base, SMALL, durable=False)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The initialised data directory of each version, which tests copy."""
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
def server(fresh: EmbeddedPostgres, templates: Path) -> EmbeddedPostgres:
    """A stopped server with a data directory: a copy saves the seconds of `initdb`."""
    template = templates / fresh.home.name
    if not template.exists():
        fresh.start()
        fresh.stop()
        copy_tree(fresh.home, template)
    else:
        copy_tree(template, fresh.home)
    return fresh
