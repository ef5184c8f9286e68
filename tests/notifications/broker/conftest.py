"""A queue for each test, at each available broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.notifications.broker.brokers import BROKERS, RABBITMQ, Broker, broker_at

# Without RabbitMQ there is nothing to kill and to cut.
collect_ignore = [] if RABBITMQ else ["test_rabbitmq.py"]


@pytest.fixture(params=BROKERS, ids=lambda url: url.partition(":")[0])
def each_broker(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[Broker]:
    with broker_at(request.param) as found:
        yield found


@pytest.fixture
def broker(transactional_db: None) -> Iterator[Broker]:
    """RabbitMQ if it is available."""
    with broker_at(BROKERS[-1]) as found:
        yield found


rabbitmq = broker
