"""A queue of its own for each test, at each broker there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.notifications.broker.brokers import BROKERS, RABBITMQ, Broker, broker_at

# Where no RabbitMQ answers, there is nothing to kill and to cut.
collect_ignore = [] if RABBITMQ else ["test_rabbitmq.py"]


@pytest.fixture(params=BROKERS, ids=lambda url: url.partition(":")[0])
def broker(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[Broker]:
    with broker_at(request.param) as found:
        yield found


@pytest.fixture
def rabbitmq(transactional_db: None) -> Iterator[Broker]:
    with broker_at(RABBITMQ) as found:
        yield found
