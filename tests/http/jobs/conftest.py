"""Each test finds the topics unknown, as a new process does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delayed_queue.http.jobs.catalogue import forget_topics


@pytest.fixture(autouse=True)
def _new_process() -> Iterator[None]:
    forget_topics()
    yield
    forget_topics()
