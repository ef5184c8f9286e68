"""Servers of a test's own, of every PostgreSQL that is installed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from example_project.postgres import EmbeddedPostgres, installed_binaries
from example_project.postgres.binaries import version_of
from tests.example.postgres.support import SMALL
from tests.support.sampling import sample


@pytest.fixture
def base() -> Iterator[Path]:
    """An empty directory that other accounts can come through, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="dq-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


INSTALLED = list(installed_binaries())


@pytest.fixture(params=sample(INSTALLED, *INSTALLED[:1]), ids=version_of)
def server(
    request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EmbeddedPostgres]:
    """A server of every PostgreSQL that is installed, not started yet."""
    monkeypatch.setenv("DELAYED_QUEUE_PG_BIN", str(request.param))
    server = EmbeddedPostgres(base, SMALL, durable=False)
    yield server
    server.stop()
