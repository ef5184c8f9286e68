"""Waiting pops during an outage of the database (J6)."""

from __future__ import annotations

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.http.tokens import VERBS, create_token
from tests.http.api.servers import uvicorn
from tests.http.api.test_waiting import Popper, until_all_wait
from tests.support.aiming import Stage
from tests.support.processes import wait_until
from tests.support.proxies import proxied

pytestmark = pytest.mark.django_db(transaction=True)


def test_who_waits_hears_of_an_outage_and_pops_work_after_it():
    token = create_token("consumer", verbs=VERBS, topics=["*"])
    with proxied() as proxy, uvicorn(url=proxy.url, POLL_INTERVAL=0.2, THREADS=2) as server:
        poppers = [Popper(server, token) for _ in range(3)]
        until_all_wait(server, 3)
        proxy.refuse()
        for each in poppers:
            response = each.connection.getresponse()
            assert response.status == 503
            assert b"database_unavailable" in response.read()
            each.vanish()
        until_all_wait(server, 0)

        proxy.accept()
        again = Popper(server, token)
        until_all_wait(server, 1)
        DelayedQueue("pops").offer_or_update("a", 1)
        assert again.answer()[0] == 200
        again.vanish()
        wait_until(lambda: "api_request_failed" not in server.log())


def test_who_leaves_before_it_listens_does_not_leave_the_others_deaf():
    """Its client disconnects while the waking connection is being opened."""
    token = create_token("consumer", verbs=VERBS, topics=["*"])
    with proxied() as proxy, uvicorn(url=proxy.url, POLL_INTERVAL=60) as server:
        aim = proxy.aim_at("^LISTEN", Stage.UNSENT)
        first = Popper(server, token)
        aim.wait()
        first.vanish()
        until_all_wait(server, 0)
        proxy.let_go()

        second = Popper(server, token)
        until_all_wait(server, 1)
        DelayedQueue("pops").offer_or_update("a", 1)
        assert second.answer()[0] == 200
        second.vanish()
