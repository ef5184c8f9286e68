"""The parts of a dispatcher alone: gathering, circuits, settings, Apprise."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from delayed_queue.notifications.channels import routes_of, signing_secrets
from delayed_queue.notifications.providers import cleaned
from delayed_queue.notifications.services import queue_of
from delayed_queue.testing import drain
from tests.notifications.configured import configure
from tests.notifications.dispatchers import SENT, dispatch_all
from tests.notifications.factories import enqueue
from tests.notifications.fakes import FakeHook

# Settings


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [{"kind": "console", "name": "a"}, {"kind": "console", "name": "a"}],
        [{"kind": "nobody.knows.This", "name": "a"}],
        [{"kind": "http", "name": "a", "password": "s3cret"}],
        [{"kind": "http", "name": "a", "url": "s3cret", "codes": {"blocked": "sent"}}],
        [{"kind": "console", "name": "a", "rate": [0, 0]}],
        [{"kind": "console", "name": "a" * 101}],
    ],
)
def test_providers_that_cannot_be_made_are_refused_without_their_options(settings, entries):
    configure(settings, {"PROVIDERS": {"sms": entries}})
    with pytest.raises(ImproperlyConfigured) as caught:
        routes_of("sms")
    assert "s3cret" not in str(caught.value)


def test_without_secrets_one_is_derived_and_changes_with_the_secret_key(settings: Settings):
    first = signing_secrets()
    settings.SECRET_KEY = "another"
    assert len(first) == 1
    assert signing_secrets() != first


def test_answers_are_kept_without_the_addresses_and_numbers_they_repeat():
    kept = cleaned("550 <ada@example.org> unknown, call +40 721 234 567 or 0721234567")
    assert kept == "550 <(address)> unknown, call (number) or (number)"


# Providers without a row in the table of outcomes


@pytest.mark.django_db(transaction=True)
def test_n8_the_console_sends_nothing_and_says_so(settings: Settings):
    configure(settings, {})
    enqueue()
    assert dispatch_all(1) == {SENT: 1}


@pytest.mark.django_db(transaction=True)
def test_n11_a_test_of_a_project_drains_a_queue_of_notifications(settings: Settings):
    configure(settings, {})
    notification = enqueue()
    assert drain(queue_of("normal", "email")).handled == 1
    notification.refresh_from_db()
    assert notification.status == SENT


# A plug-in of Apprise imports it.
@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("path", "end"), [("", (SENT, "")), ("500", ("FAILED", "in doubt"))])
def test_n8_apprise_says_yes_or_leaves_it_open(settings: Settings, path: str, end: tuple[str, str]):
    with FakeHook() as hook:
        url = f"json://127.0.0.1:{hook.port}/{path}?to={{recipient}}"
        configure(
            settings, {"PROVIDERS": {"sms": [{"kind": "apprise", "name": "chat", "url": url}]}}
        )
        notification = enqueue(channel="sms", recipient="+40721234567", body="Code 7.")
        dispatch_all(1)
    notification.refresh_from_db()
    assert (notification.status, notification.outcome) == end
    assert hook.seen == {"": 1}
