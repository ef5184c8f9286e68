"""Outages between the provider's answer and its record in the database (N3, N7, N8)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from delayed_queue.notifications import dispatching, services
from delayed_queue.notifications.dispatching import Start
from delayed_queue.notifications.models import Notification
from tests.notifications.dispatchers import SENT, dispatcher
from tests.notifications.factories import enqueue, lease, lose_lease
from tests.notifications.fakes import FakeSms
from tests.support.aiming import Stage
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.running import running

pytestmark = pytest.mark.django_db(transaction=True)

SETTLE = r"status = held\.status"


def status_of(notification: Notification) -> str:
    notification.refresh_from_db()
    return notification.status


def outcomes(notification: Notification) -> list[str]:
    return list(notification.deliveries.order_by("id").values_list("outcome", flat=True))


@pytest.mark.parametrize(
    ("text", "made"), [("[503,1]", ["failed", "sent"]), ("[500,1]", ["ambiguous", "sent"])]
)
def test_n3_a_deferral_whose_answer_is_lost_comes_again_and_is_told_once(
    dispatch: dict[str, Any], sms: FakeSms, proxied: None, proxy: Proxy, text: str, made: list[str]
):
    """If the dispatcher took it for lost, it would acknowledge the message and never send it."""
    notification = enqueue(channel="sms", recipient="+40721234567", body=f"{text} Your code is 7.")
    aim = proxy.aim_at(SETTLE, Stage.COMMITTED)
    with running(dispatcher()):
        aim.wait()
        proxy.cut_aimed()
        wait_until(lambda: status_of(notification) == SENT)
    assert sms.accepted == {str(notification.id): 1}
    assert outcomes(notification) == made


def test_n3_an_end_whose_answer_is_lost_is_told_once(dispatch, smtp, proxied, proxy):
    notification = enqueue()
    queue = services.queue_of("normal", "email")
    aim = proxy.aim_at(SETTLE, Stage.COMMITTED)
    with running(dispatcher()):
        aim.wait()
        proxy.cut_aimed()
        wait_until(lambda: not queue.contains_message(str(notification.id)))
    assert status_of(notification) == SENT
    assert outcomes(notification) == ["sent"]


def test_n8_an_answer_is_not_forgotten_over_an_outage_longer_than_all_retries(
    dispatch, smtp, proxied, proxy, caplog
):
    """Without idempotency keys it would end in doubt, and an operator might repeat it."""
    dispatch["PROVIDERS"]["email"][0]["timeout"] = 30.0
    notification = enqueue(recipient="hang-after+ada@example.org")
    with running(dispatcher()):
        wait_until(lambda: smtp.hanging == 1)
        proxy.refuse()
        wait_until(lambda: "event=database_unavailable" in caplog.text)
        smtp.release()
        wait_until(lambda: smtp.accepted)
        proxy.accept()
        connection.close()
        wait_until(lambda: status_of(notification) == SENT)
    assert smtp.accepted == {str(notification.id): 1}
    assert outcomes(notification) == ["sent"]


def test_n3_who_lost_its_lease_gets_nothing_even_beside_who_holds_it():
    notification = enqueue()
    old = lease(notification)
    lose_lease(old)
    new = lease(notification)
    stale, current = dispatching.start_all([Start(old, "texts"), Start(new, "texts")])
    assert stale is None
    assert current is not None
    assert str(current.lease_id) == new.lease_id
