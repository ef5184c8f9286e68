"""A server crash while workers drain it (W7)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from django.db import connections

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter, Message
from example_project.postgres import EmbeddedPostgres
from example_project.settings import database
from tests.support.ledger import effects, is_drained, offer
from tests.support.processes import wait_until
from tests.support.programs import working
from tests.support.servers import crash, private_server
from tests.workerapp.models import Effect

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.usefixtures("each_round"),
]


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedPostgres]:
    with private_server() as server:
        yield server


@pytest.fixture
def server(own_server: EmbeddedPostgres, transactional_db: None) -> Iterator[EmbeddedPostgres]:
    """Route Django's default alias to a server of this module, with empty tables."""
    found = connections["default"].settings_dict
    kept = dict(found)
    connections["default"].close()
    found |= database(own_server.socket_url)
    for model in (Effect, Message, DeadLetter):
        model.objects.all().delete()
    yield own_server
    connections["default"].close()
    found |= kept


def test_w7_a_server_that_crashes_again_and_again_loses_no_message(server):
    """Only messages handled and not yet acknowledged at a crash may come twice."""
    keys = offer(DelayedQueue("patient"), 1500)
    options = ("--queue", "patient", "--lease", "1", "--processes", "0")
    with working(*options) as first, working(*options) as two:
        for _ in range(2):
            seen = Effect.objects.count()
            wait_until(partial(_has_handled, seen + 100))
            connections["default"].close()
            crash(server)
            server.start()
        wait_until(is_drained)
        assert [first.stop(), two.stop()] == [0, 0]
        assert first.starts == two.starts == 1
    assert set(effects()) == keys
    assert not DeadLetter.objects.exists()


def _has_handled(count: int) -> bool:
    return Effect.objects.count() >= count or is_drained()
