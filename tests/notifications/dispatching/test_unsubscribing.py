"""One-click unsubscription of mail with a category (N13, N14), by RFC 8058."""

from __future__ import annotations

import base64
import email
import re
from email import policy
from email.message import EmailMessage
from typing import Any

import dkim
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from django.test import Client
from pytest_django import Settings

from delayed_queue.notifications import managing
from delayed_queue.notifications.catalogue import add_version
from delayed_queue.notifications.intake import Accepted, accept
from delayed_queue.notifications.models import Notification, Status, Suppression
from delayed_queue.notifications.unsubscribing import token_of
from tests.notifications.dispatchers import SENT, dispatch_all
from tests.notifications.fakes import FakeSmtp
from tests.notifications.requests import email as mail
from tests.notifications.requests import template

pytestmark = pytest.mark.django_db(transaction=True)

ONE_CLICK = b"List-Unsubscribe=One-Click"
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def anyone(settings: Settings) -> Client:
    """A client without a session, of a site that requires a login and enforces CSRF."""
    middleware = "django.contrib.auth.middleware.LoginRequiredMiddleware"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, middleware]
    return Client(enforce_csrf_checks=True)


def sent(smtp: FakeSmtp, **values: Any) -> EmailMessage:
    """Send a mail; return it as it arrived."""
    (answer,) = accept([mail(**values)], tenant="shop")
    assert isinstance(answer, Accepted), answer
    dispatch_all(Notification.objects.count())
    found = email.message_from_bytes(smtp.contents[-1], policy=policy.SMTP)
    assert isinstance(found, EmailMessage)
    return found


def link_of(message: EmailMessage) -> str:
    """Return the path of the link, as a mailbox provider finds it (RFC 2369, section 2)."""
    found = re.fullmatch(r"\s*<(https://notify\.example/v1/unsubscribe/[\w-]+)>", _raw(message))
    assert found is not None
    return found[1].removeprefix("https://notify.example")


def _raw(message: EmailMessage) -> str:
    return str(dict(message.raw_items())["List-Unsubscribe"])


@pytest.mark.parametrize("to", ["ada@example.org", "a" * 60 + "@" + "long-label." * 15 + "example"])
def test_n13_a_mail_with_a_category_has_both_headers_and_can_be_signed(dispatch, smtp, to):
    message = sent(smtp, to=to, category="offers", html="<p>Hello.</p>")

    assert message["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    link = link_of(message)
    assert to not in link
    assert "offers" not in link
    names = [name.lower() for name in message]
    assert [names.count(f"list-unsubscribe{each}") for each in ("", "-post")] == [1, 1]
    assert max(map(len, smtp.contents[-1].splitlines())) <= 998
    assert is_signable(smtp.contents[-1])


def is_signable(content: bytes) -> bool:
    """Sign with dkimpy over both headers, as RFC 8058 requires, and verify."""
    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    record = b"v=DKIM1; k=rsa; p=" + base64.b64encode(public)
    covered = [b"From", b"To", b"Subject", b"List-Unsubscribe", b"List-Unsubscribe-Post"]
    signature = dkim.sign(content, b"s1", b"example.org", private, include_headers=covered)
    changed = content.replace(b"/unsubscribe/", b"/unsubscribe/x")
    verified = [
        dkim.verify(signature + each, dnsfunc=lambda *_, **__: record)
        for each in (content, changed)
    ]
    return verified == [True, False]


@pytest.mark.parametrize("values", [{}, {"category": "codes", "priority": "urgent"}])
def test_n13_other_mail_has_neither(dispatch: dict[str, Any], smtp: FakeSmtp, values: Any):
    message = sent(smtp, **values)
    assert message["List-Unsubscribe"] is message["List-Unsubscribe-Post"] is None


def test_n13_a_transactional_template_ignores_opt_outs_but_not_suppressions(dispatch, smtp):
    add_version(template(name="receipt", body="Paid.", category="orders", is_transactional=True))
    managing.suppress("email", "ada@example.org", "orders")
    receipt = {"template": "receipt", "context": {"name": "Ada"}, "subject": None, "body": None}

    assert sent(smtp, **receipt)["List-Unsubscribe"] is None
    managing.suppress("email", "ada@example.org")
    (answer,) = accept([mail(**receipt)], tenant="shop")
    assert isinstance(answer, Accepted)
    assert answer.status == Status.CANCELLED


def test_n13_an_opt_out_reaches_waiting_mail_of_its_category_alone(dispatch: dict[str, Any]):
    made = [
        mail(category="offers"), mail(category="news"), mail(category="offers", priority="urgent"),
    ]  # fmt: skip
    accept(made, tenant="shop")
    managing.suppress("email", "ada@example.org", "offers")
    dispatch_all(3)
    ends = Notification.objects.order_by("id").values_list("status", flat=True)
    assert list(ends) == [Status.CANCELLED, SENT, SENT]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (ONE_CLICK, FORM), (b"", FORM), (b"\xff\x00", "multipart/form-data; boundary="),
        (b"{", "application/json"), (b"x" * 5_000_000, FORM),
    ],
)  # fmt: skip
def test_n14_a_post_opts_out_whatever_its_body(anyone: Client, body: bytes, content_type: str):
    path = f"/v1/unsubscribe/{token_of('Ada@Example.org', 'offers')}"
    for _ in range(2):
        answer = anyone.post(path, body, content_type=content_type)
        assert (answer.status_code, answer.cookies) == (200, {})
    found = list(Suppression.objects.values_list("category", "reason"))
    assert found == [("offers", "opt-out")]
    refused, accepted = accept([mail(category="offers"), mail(category="news")], tenant="shop")
    assert isinstance(refused, Accepted)
    assert isinstance(accepted, Accepted)
    assert (refused.status, accepted.status) == (Status.CANCELLED, Status.ENQUEUED)


def test_n14_a_click_leaves_the_reason_of_a_complaint(anyone: Client):
    managing.suppress("email", "ada@example.org", "offers", "complaint")
    anyone.post(f"/v1/unsubscribe/{token_of('ada@example.org', 'offers')}")
    assert Suppression.objects.get().reason == "complaint"


@pytest.mark.parametrize(
    ("language", "text"), [("en", "Unsubscribe"), ("de", "Abbestellen"), ("fr;q=x", "Unsubscribe")]
)
def test_n14_a_get_shows_one_button_and_changes_nothing(anyone: Client, language: str, text: str):
    path = f"/v1/unsubscribe/{token_of('ada@example.org', 'offers')}"
    for method in (anyone.get, anyone.head):
        answer = method(path, headers={"accept-language": language})
        assert answer.status_code == 200
    page = anyone.get(path, headers={"accept-language": language}).content.decode()
    assert page.count("<button>") == page.count(f"<button>{text}</button>") == 1
    assert "ada@" not in page
    assert "offers" not in page
    assert not Suppression.objects.exists()


def test_n14_links_open_with_fallbacks_and_with_no_other_key(settings, anyone: Client):
    path = f"/v1/unsubscribe/{token_of('ada@example.org', 'offers')}"
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another key of this test"
    assert anyone.get(path).status_code == 200
    settings.SECRET_KEY_FALLBACKS = []
    assert anyone.get(path).status_code == 404


@pytest.mark.parametrize("damage", ["x", "", "token", "%00", "=" * 3, "é", "a" * 5000])
def test_n14_a_damaged_link_is_not_found(anyone: Client, damage: str):
    path = f"/v1/unsubscribe/{token_of('ada@example.org', 'offers')[:-9]}{damage}"
    assert anyone.get(path).status_code == anyone.post(path).status_code == 404
    assert not Suppression.objects.exists()
    assert anyone.put(f"/v1/unsubscribe/{token_of('a@b.example', '')}").status_code == 405
