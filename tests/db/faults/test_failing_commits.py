"""An offer is announced in the round trip that stores it; a failing commit raises."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import InternalError, connection

from delayed_queue import DelayedQueue, OfferOutcome
from tests.queue.contract.support import HOUR

REFUSE_AT_COMMIT = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'refused at the commit' USING ERRCODE = 'XX000';
END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON delayed_queue
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse();
"""
ACCEPT = "DROP TRIGGER refuse ON delayed_queue; DROP FUNCTION refuse()"


@pytest.fixture
def refusing(transactional_db: None) -> Iterator[None]:
    """A database that accepts every message and refuses it at the commit."""
    with connection.cursor() as cursor:
        cursor.execute(REFUSE_AT_COMMIT)
    yield
    with connection.cursor() as cursor:
        cursor.execute(ACCEPT)


@pytest.mark.parametrize("delay", [None, HOUR], ids=["announced", "not announced"])
def test_an_offer_that_fails_at_its_commit_raises(refusing: None, delay: timedelta | None):
    queue = DelayedQueue("orders")
    with pytest.raises(InternalError, match="refused at the commit"):
        queue.offer_or_update("a", 1, delay=delay)
    assert not queue.contains_message("a")


def test_the_connection_works_on_after_it(refusing: None):
    queue = DelayedQueue("orders")
    with pytest.raises(InternalError):
        queue.offer_or_update("a", 1)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE delayed_queue DISABLE TRIGGER refuse")
    assert queue.offer_or_update("a", 1) is OfferOutcome.CREATED
