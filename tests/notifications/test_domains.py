"""International domains by IDNA 2008 and UTS 46 (N18)."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from delayed_queue.notifications import managing
from delayed_queue.notifications.intake import Accepted, accept
from delayed_queue.notifications.models import Notification, Status, Suppression
from delayed_queue.notifications.recipients import hash_by_idna_2003, recipient_hash
from tests.notifications.factories import enqueue
from tests.notifications.requests import email
from tests.notifications.test_validation import errors

pytestmark = pytest.mark.django_db

# By the tables of Unicode, not by our code: ß, the final sigma and the joiner are letters.
FORMS = [
    ("a@faß.de", "a@xn--fa-hia.de"), ("a@FAẞ.de", "a@xn--fa-hia.de"),
    ("a@βόλος.com", "a@xn--nxasmm1c.com"), ("A@Bücher.example", "A@xn--bcher-kva.example"),
    ("a@XN--FA-HIA.de", "a@xn--fa-hia.de"), ("a@\uff45xample\u3002org", "a@example.org"),
    ("a@Example.ORG", "a@example.org"), ("a@r3---sn.example", "a@r3---sn.example"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "stored"), FORMS)
def test_n18_an_address_is_stored_and_compared_in_its_ascii_form(given: str, stored: str):
    managing.suppress("email", stored)
    (answer,) = accept([email(to=given)], tenant="shop")
    assert isinstance(answer, Accepted)
    assert answer.status == Status.CANCELLED
    assert Notification.objects.get().recipient == stored


def test_n18_two_owners_are_two_recipients():
    managing.suppress("email", "a@fass.de")
    (answer,) = accept([email(to="a@faß.de")], tenant="shop")
    assert isinstance(answer, Accepted)
    assert answer.status == Status.ENQUEUED


@pytest.mark.parametrize(
    "address",
    [
        "a@☕.example",
        "a@xn--zz--.de",
        "a@xn--a.example",
        "a@a\u0301\u200d.de",
        "a@" + "ß" * 64 + ".de",
    ],
)
def test_n18_a_domain_that_nobody_can_own_is_refused(address: str):
    assert [each.path for each in errors(email(to=address))] == ["to"]


def test_n18_suppressions_by_idna_2003_are_copied_where_the_address_is_known(capsys):
    known = enqueue(recipient="a@faß.de", recipient_hash=hash_by_idna_2003("a@faß.de"))
    managing.suppress("email", "a@fass.de", "offers", "complaint")
    for added in (1, 0):
        call_command("rehashsuppressions", format="json")
        assert f'"added": {added}' in capsys.readouterr().out
    known.refresh_from_db()
    assert known.recipient == "a@xn--fa-hia.de"
    assert bytes(known.recipient_hash) == recipient_hash("email", "a@faß.de")
    kept = Suppression.objects.get(recipient_hash=known.recipient_hash)
    assert (kept.category, kept.reason) == ("offers", "complaint")
    assert Suppression.objects.count() == 2
