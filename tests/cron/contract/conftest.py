"""The queues under test: on PostgreSQL, with both kinds of cursors."""

from __future__ import annotations

from typing import Final

import pytest
from pytest_django import Settings

from tests.queue.contract.conftest import clock, maker, manual_clock, queue, shared_queue
from tests.queue.contract.support import MakeQueue

__all__ = ["clock", "manual_clock", "queue", "shared_queue"]

BACKENDS: Final = ("postgresql", "cursors")


@pytest.fixture(params=BACKENDS)
def make_queue(request: pytest.FixtureRequest, settings: Settings, db: None) -> MakeQueue:
    return maker(request.param, settings)


@pytest.fixture(params=BACKENDS)
def make_shared_queue(
    request: pytest.FixtureRequest, settings: Settings, transactional_db: None
) -> MakeQueue:
    return maker(request.param, settings)
