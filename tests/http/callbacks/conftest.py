"""A receiver that callbacks may reach, and empty caches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delayed_queue.http import rates
from tests.http.callbacks.delivering import permitted
from tests.http.callbacks.servers import Receiver


@pytest.fixture
def fresh(db: None) -> None:
    rates.forget()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as opened, permitted(opened, BREAKER_FAILURES=1000):
        yield opened
