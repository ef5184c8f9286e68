"""The handler of the example's campaign: its records become notifications."""

from __future__ import annotations

import pytest

from delayed_queue.notifications.models import Notification
from delayed_queue.testing import assert_dead, drain
from example_project.shop import campaign
from tests.notifications.requests import email


@pytest.mark.django_db(transaction=True)
def test_each_record_is_stored_once_and_a_bad_one_is_refused():
    for key, request in (("a", email()), ("b", email(to="ada"))):
        campaign.offer_if_not_exists(key, request)
    drain(campaign)
    campaign.offer_if_not_exists("a", email())
    drain(campaign)
    [stored] = Notification.objects.all()
    assert (stored.tenant, stored.dedupe_key) == (campaign.name, "a")
    assert_dead(campaign, "b", reason="to: is not an email address such as ada@example.org")
