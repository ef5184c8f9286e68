"""Attachments, copies, reply addresses and headers of mail (N20)."""

from __future__ import annotations

import base64
import email
import json
from collections.abc import Iterator
from email import policy
from email.message import EmailMessage
from typing import Any

import pytest
from pytest_django import Settings

from delayed_queue.notifications import managing
from delayed_queue.notifications.intake import Accepted, Refused, accept
from delayed_queue.notifications.models import Notification, ParkedRequest, Status, Suppression
from delayed_queue.notifications.parking import Incoming, take
from tests.http.callbacks.servers import Receiver, answering, answering_in_turn
from tests.notifications.dispatchers import SENT, dispatch_all
from tests.notifications.fakes import FakeSmtp
from tests.notifications.requests import email as mail
from tests.notifications.requests import sms

pytestmark = pytest.mark.django_db(transaction=True)

PDF = b"%PDF-1.7\n" + bytes(range(256))
INLINE = {"name": "invoice.pdf", "content": base64.b64encode(PDF).decode()}


@pytest.fixture
def files(settings: Settings) -> Iterator[Receiver]:
    """A server of files that the guard permits."""
    with Receiver(answering(body=PDF)) as server:
        allowed = {"ALLOWED_NETWORKS": [f"{server.host}/32"], "ALLOWED_PORTS": [server.port]}
        settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {"CALLBACKS": allowed}
        yield server


def sent(smtp: FakeSmtp, **values: Any) -> EmailMessage:
    """Send a mail; return it as it arrived."""
    assert status_of(**values) == SENT
    found = email.message_from_bytes(smtp.contents[-1], policy=policy.SMTP)
    assert isinstance(found, EmailMessage)
    return found


def status_of(**values: Any) -> str:
    """Return how a mail ends."""
    (answer,) = accept([mail(**values)], tenant="shop")
    assert isinstance(answer, Accepted), answer
    dispatch_all(Notification.objects.count())
    return Notification.objects.get(pk=answer.id).status


def files_of(message: EmailMessage) -> list[tuple[str | None, str, Any]]:
    return [
        (each.get_filename(), each.get_content_type(), each.get_content())
        for each in message.iter_attachments()
    ]


def test_n20_a_mail_has_its_files_copies_reply_address_and_headers(dispatch, smtp):
    note = {"name": "Grüße.txt", "type": "text/plain", "content": base64.b64encode(b"hi").decode()}
    message = sent(
        smtp, html="<p>Hello.</p>", attachments=[INLINE, note], replyTo="help@bücher.example",
        cc=["Bob@Bücher.example", "eve@example.org", "bob@xn--bcher-kva.example"],
        headers={"x-entity-ref-id": "42", "References": "<1@example.org>"},
    )  # fmt: skip
    assert files_of(message) == [
        ("invoice.pdf", "application/pdf", PDF), ("Grüße.txt", "text/plain", "hi")
    ]  # fmt: skip
    assert message["Cc"] == "bob@xn--bcher-kva.example, eve@example.org"
    assert message["Reply-To"] == "help@xn--bcher-kva.example"
    assert (message["X-Entity-Ref-ID"], message["References"]) == ("42", "<1@example.org>")
    copies = ["bob@xn--bcher-kva.example", "eve@example.org"]
    assert smtp.recipients[-1] == ["ada@example.org", *copies]


def test_n20_suppressed_copies_are_left_out_when_it_is_sent(dispatch, smtp):
    accept([mail(cc=["bob@example.org", "eve@example.org"], category="offers")], tenant="shop")
    managing.suppress("email", "bob@example.org")
    managing.suppress("email", "EVE@example.org", "offers")
    dispatch_all(1)
    assert list(smtp.recipients) == [["ada@example.org"]]
    assert b"bob@" not in smtp.contents[0]


def test_n20_copies_of_a_refused_recipient_are_not_sent(dispatch: dict[str, Any], smtp: FakeSmtp):
    dispatch["PROVIDERS"]["email"][0]["threads"] = 1
    cc = ["550+bob@example.org", "eve@example.org"]
    accept([mail(to="550+ada@example.org", cc=cc), mail(cc=cc)], tenant="shop")
    assert dispatch_all(2) == {SENT: 1, Status.FAILED: 1}
    assert list(smtp.recipients) == [["ada@example.org", "eve@example.org"]]
    assert smtp.connections == 1


def test_n20_a_file_is_fetched_when_the_mail_is_sent(dispatch, smtp, files):
    files.behaviour = answering_in_turn(answering(503), answering(body=PDF * 9000))
    message = sent(smtp, attachments=[{"name": "a.pdf", "url": f"{files.url}/a"}, INLINE])
    assert [each[2] for each in files_of(message)] == [PDF * 9000, PDF]
    assert [each.line for each in files.requests] == ["GET /hook/a HTTP/1.1"] * 2
    # The first attempt called no provider.
    assert Notification.objects.get().attempts == 1


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (answering(404), "404"), (answering(302), "302"),
        (answering(body=b"x" * (10 * 2**20 + 1)), "over 10485760 bytes"),
        (answering(500), "500"),
        (answering(body=b"", headers={"Content-Encoding": "gzip"}), "compressed"),
    ],
    ids=["missing", "elsewhere", "large", "broken", "compressed"],
)  # fmt: skip
def test_n20_a_mail_whose_file_cannot_be_fetched_fails(dispatch, smtp, files, behaviour, reason):
    files.behaviour = behaviour
    assert status_of(attachments=[{"name": "a", "url": files.url}]) == Status.FAILED
    found = Notification.objects.get()
    assert found.outcome == f"attachment 1 could not be fetched: {reason}"
    assert (found.attempts, found.deliveries.count(), len(smtp.contents)) == (0, 0, 0)
    assert len(files.requests) == (4 if reason == "500" else 1)


def test_n20_the_guard_checks_addresses_again_when_a_file_is_fetched(settings, dispatch, files):
    accept([mail(attachments=[{"name": "a", "url": files.url}])], tenant="shop")
    callbacks = settings.DELAYED_QUEUE["CALLBACKS"] | {"ALLOWED_NETWORKS": []}
    settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {"CALLBACKS": callbacks}
    dispatch_all(1)
    assert Notification.objects.get().outcome.endswith("fetched: blocked")
    assert files.requests == []


FILE = "attachments[0]"
BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"cc": ["bob@example.org", "bob", "a@b.example\r\nBcc: x@y.example"]}, ["cc[1]", "cc[2]"]),
    ({"cc": "bob@example.org"}, ["cc"]),
    ({"cc": ["b@example.org"] * 21}, ["cc"]),
    ({"replyTo": "Bob <bob@example.org>"}, ["replyTo"]),
    ({"headers": {"X-Other": "1", "References": "a\r\nBcc: x@y.example"}},
     ["headers.?", "headers.References"]),
    ({"headers": {"references": "é", "In-Reply-To": "x" * 901, "Auto-Submitted": 1}},
     ["headers.references", "headers.In-Reply-To", "headers.Auto-Submitted"]),
    ({"headers": {"References": "a", "references": "b"}}, ["headers.?"]),
    ({"headers": {"References: x\r\nBcc": "a"}}, ["headers.?"]),
    ({"headers": {"Bcc": "x@y.example", "List-Unsubscribe": "<https://x.example>"}},
     ["headers.?"] * 2),
    ({"attachments": [{"name": "a"}]}, [FILE]),
    ({"attachments": [INLINE | {"url": "https://x.example/"}]}, [FILE]),
    ({"attachments": [INLINE | {"content": "%%"}]}, [f"{FILE}.content"]),
    ({"attachments": [INLINE, {"name": "a", "url": "http://127.0.0.1/"}]}, ["attachments[1].url"]),
    ({"attachments": [{"name": "a", "url": "ftp://x.example/"}]}, [f"{FILE}.url"]),
    ({"attachments": [INLINE | {"name": "a/../b"}]}, [f"{FILE}.name"]),
    ({"attachments": [INLINE | {"name": "a\r\nBcc: b"}]}, [f"{FILE}.name"]),
    ({"attachments": [INLINE | {"type": "message/rfc822"}]}, [f"{FILE}.type"]),
    ({"attachments": [INLINE | {"type": "text/html\r\nBcc: b"}]}, [f"{FILE}.type"]),
    ({"attachments": [INLINE | {"size": 7}]}, [FILE]),
    ({"attachments": [INLINE | {"content": "AAAA" * 200_000}] * 2}, ["attachments"]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "paths"), BAD)
def test_n20_n22_each_bad_field_is_named_and_nothing_is_stored(values, paths):
    (answer,) = accept([mail(**values)], tenant="shop")
    assert isinstance(answer, Refused)
    assert [each.path for each in answer.errors] == paths
    assert not Notification.objects.exists()


def test_n20_other_channels_and_null_have_none():
    fields: dict[str, Any] = {
        "cc": ["b@example.org"], "replyTo": "b@example.org", "headers": {"References": "a"},
        "attachments": [INLINE],
    }  # fmt: skip
    empty = [mail(**dict.fromkeys(fields)), mail(cc=[], headers={}, attachments=[], replyTo="")]
    refused, *accepted = accept([sms(**fields), *empty], tenant="shop")
    assert isinstance(refused, Refused)
    assert sorted(each.path for each in refused.errors) == sorted(fields)
    assert [type(each) for each in accepted] == [Accepted] * 2
    assert set(Notification.objects.values_list("mail", flat=True)) == {None}


def test_n20_a_message_of_the_broker_takes_the_same_way():
    content = base64.b64encode(bytes(2**20)).decode()
    good = json.dumps(mail(attachments=[{"name": "a", "content": content}]))
    bad = json.dumps(mail(cc=["bob"]))
    tally = take([Incoming(good.encode()), Incoming(bad.encode())], tenant="shop", origin="q")
    assert (tally.accepted, tally.parked) == (1, 1)
    assert ParkedRequest.objects.get().errors[0]["path"] == "cc[0]"
    assert not Suppression.objects.exists()
