"""Where the processes of a demo that runs in the tests' process find the database of the tests."""

from __future__ import annotations

import pytest

from tests.support.processes import database_url


@pytest.fixture
def demo_database(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url())
