"""Pipelined statements, whose results are read later."""

from __future__ import annotations

import pytest
from django.db import connections

from delayed_queue.db.statements import Sent
from delayed_queue.models import Limit
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
INSERT = """
INSERT INTO delayed_queue_limit ("pKind", "group")
VALUES ('a|json', %(name)s)
RETURNING "group"
"""


@pytest.mark.parametrize("channels", [[], ["delayed_queue_tests"]])
def test_they_have_taken_effect_before_anybody_asks_for_the_answers(channels: list[str]) -> None:
    """psycopg has no public name for it: a release without it would work, but no faster."""
    connection = connections.create_connection("default")
    try:
        sent = Sent(connection, [(INSERT, {"name": name}) for name in "ab"], channels)
        wait_until(lambda: Limit.objects.count() == 2)
        assert sent.answers() == [[("a",)], [("b",)]]
    finally:
        connection.close()
