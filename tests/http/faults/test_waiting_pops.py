"""Pops that wait while the database goes away (J6)."""

from __future__ import annotations

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.http.tokens import VERBS, create_token
from tests.http.api.servers import uvicorn
from tests.http.api.test_waiting import Popper, until_all_wait
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
