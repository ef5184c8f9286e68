"""Callers of the API with tokens, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client

from delayed_queue.http import rates
from delayed_queue.http.api import pool
from delayed_queue.http.api.auth import cache
from delayed_queue.http.api.waiting import waiting_pops
from delayed_queue.http.tokens import VERBS, create_token


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Tokens and rates that a process has cached outlive the rows of a test."""
    cache.clear()
    rates.forget()
    yield
    cache.clear()


@pytest.fixture
def new_process() -> Iterator[None]:
    yield
    # A test database cannot be dropped while the API's threads are connected to it.
    waiting_pops.close()
    pool.close()


@pytest.fixture
def make_client(db: None) -> Callable[..., Client]:
    def make(name: str = "tests", verbs: Any = VERBS, topics: Any = ("*",), **more: Any) -> Client:
        token = create_token(name, verbs=verbs, topics=topics, **more)
        return Client(headers={"Authorization": f"Bearer {token}"}, raise_request_exception=False)

    return make


@pytest.fixture
def caller(make_client: Callable[..., Client]) -> Client:
    return make_client()
