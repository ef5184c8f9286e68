"""Let the processes of a demo in the tests' process find the tests' database."""

from __future__ import annotations

import pytest

from tests.support.processes import database_url


@pytest.fixture
def demo_database(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url())
