"""Broken connections and outages let no invalid token in (J13)."""

from __future__ import annotations

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.http.api.auth import cache
from delayed_queue.http.tokens import create_token, find_grant
from tests.support.concurrency import calling, wait_until_blocked
from tests.support.proxy import Proxy

pytestmark = pytest.mark.urls("tests.http.api.urls")


def test_a_look_on_a_connection_that_broke_is_repeated(queue: DelayedQueue, proxy: Proxy):
    token = create_token("a", verbs=["read"], topics=["*"])
    proxy.cut()
    grant = find_grant(token)
    assert grant is not None
    assert grant.verbs == {"read"}


def test_a_note_of_the_use_that_was_lost_is_written_again(queue, proxy, other, admin):
    """The update waits for a locked row when its connection ends."""
    token = create_token("a", verbs=["read"], topics=["*"])
    other.execute("BEGIN")
    other.execute("SELECT 1 FROM delayed_queue_token FOR UPDATE")

    def find() -> bool:
        return find_grant(token) is not None

    with calling(find) as looking:
        wait_until_blocked(admin, looking)
        proxy.cut()
        other.execute("ROLLBACK")
        assert looking.answer()
    found = admin.execute('SELECT "lastUsedAt" IS NOT NULL FROM delayed_queue_token')
    assert found.fetchall() == [(True,)]


def test_while_the_database_is_away_nobody_new_is_let_in(queue, proxy, client):
    known, unknown = (create_token(name, verbs=["read"], topics=["*"]) for name in ("a", "b"))
    cache.clear()
    url = "/orders/v1/topics/a/stats"
    assert client.get(url, headers={"Authorization": f"Bearer {known}"}).status_code == 200
    proxy.refuse()
    proxy.cut()
    response = client.get(url, headers={"Authorization": f"Bearer {unknown}"})
    assert response.status_code == 503
    assert response.json()["code"] == "database_unavailable"
    assert client.get(url, headers={"Authorization": f"Bearer {known}"}).status_code == 200
    with pytest.raises(ResourceUnavailable):
        find_grant(unknown)
    cache.clear()
