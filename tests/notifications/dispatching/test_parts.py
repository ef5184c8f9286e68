"""The parts of a dispatcher by themselves: gathering, circuits, settings, Apprise."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DataError, InternalError, OperationalError
from pytest_django import Settings

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.notifications import dispatching
from delayed_queue.notifications.channels import routes_of, signing_secrets
from delayed_queue.notifications.dispatching import Gatherer
from delayed_queue.notifications.providers import cleaned
from tests.notifications.configured import configure
from tests.notifications.dispatchers import SENT, dispatch_all
from tests.notifications.factories import enqueue
from tests.notifications.fakes import FakeHook

# Gathering


class Calls:
    """Notes what each call was given; refuses negative numbers."""

    def __init__(self) -> None:
        self.error: Exception = DataError("negative")
        self.made: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.made.append(list(items))
        if any(item < 0 for item in items):
            raise self.error
        return [item * 10 for item in items]


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def gatherer(calls: Calls) -> Iterator[Gatherer[int, int]]:
    gatherer: Gatherer[int, int] = Gatherer("test", calls, 0.001)
    yield gatherer
    gatherer.close()


def ask(gatherer: Gatherer[int, int], *items: int) -> list[Any]:
    async def run() -> list[Any]:
        return await asyncio.gather(*map(gatherer.ask, items), return_exceptions=True)

    return asyncio.run(run())


def test_what_is_asked_at_the_same_time_is_one_call_and_each_gets_its_own_answer(
    calls: Calls, gatherer: Gatherer[int, int]
):
    assert ask(gatherer, 1, 2, 3) == [10, 20, 30]
    assert calls.made == [[1, 2, 3]]


@pytest.mark.parametrize(
    "error", [DataError("negative"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"), KeyError()]
)
def test_an_item_that_breaks_a_call_fails_alone(
    calls: Calls, gatherer: Gatherer[int, int], error: Exception
):
    calls.error = error
    one, bad, two = ask(gatherer, 1, -1, 2)
    assert (one, two) == (10, 20)
    assert bad is error
    assert calls.made == [[1, -1, 2], [1], [-1], [2]]


def test_what_the_server_has_no_room_for_is_not_asked_again(
    calls: Calls, gatherer: Gatherer[int, int]
):
    calls.error = OperationalError()
    calls.error.__cause__ = psycopg.errors.ProgramLimitExceeded()
    assert ask(gatherer, -1) == [calls.error]


def test_while_the_database_is_away_the_call_is_made_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatching, "PAUSE_SECONDS", 0.001)
    full, read_only = OperationalError(), InternalError()
    full.__cause__ = psycopg.errors.DiskFull()
    read_only.__cause__ = psycopg.errors.ReadOnlySqlTransaction()
    lost = OperationalError("the connection is closed")  # nobody answered: it has no SQLSTATE
    away: list[Exception] = [ResourceUnavailable(), full, read_only, lost]

    def call(items: Sequence[int]) -> list[int]:
        if away:
            raise away.pop(0)
        return list(items)

    gatherer: Gatherer[int, int] = Gatherer("test", call, 0.0)
    assert ask(gatherer, 1, 2) == [1, 2]
    gatherer.close()


def test_what_was_asked_before_the_end_is_still_called(calls: Calls):
    async def run() -> None:
        gatherer: Gatherer[int, int] = Gatherer("test", calls, 0.05)
        asked = asyncio.get_running_loop().create_task(gatherer.ask(7))
        await asyncio.sleep(0)
        asked.cancel()
        await gatherer.aclose()

    asyncio.run(run())
    assert calls.made == [[7]]


def test_an_outage_at_the_end_is_not_waited_for():
    def call(items: Sequence[int]) -> list[int]:
        raise ResourceUnavailable

    async def run() -> object:
        gatherer: Gatherer[int, int] = Gatherer("test", call, 0.0)
        asked = asyncio.get_running_loop().create_task(gatherer.ask(7))
        await asyncio.sleep(0)
        await gatherer.aclose()
        return (await asyncio.gather(asked, return_exceptions=True))[0]

    assert isinstance(asyncio.run(run()), ResourceUnavailable)


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
def test_providers_that_cannot_be_made_are_refused_without_their_options(
    settings: Settings, entries: list[dict[str, Any]]
):
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


# Providers that are not of the table of outcomes


@pytest.mark.django_db(transaction=True)
def test_n8_the_console_sends_nothing_and_says_so(settings: Settings):
    configure(settings, {})
    enqueue()
    assert dispatch_all(1) == {SENT: 1}


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
