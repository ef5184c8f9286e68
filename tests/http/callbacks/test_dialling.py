"""A refused address opens no socket; the checked address is the dialled one (J11)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import example, given
from hypothesis import settings as running
from hypothesis import strategies as st

from delayed_queue.exceptions import UrlRefused
from delayed_queue.http.callbacks.calls import CallbackRequest, CallbackResult, Failure
from delayed_queue.http.callbacks.client import CallbackClient
from delayed_queue.http.callbacks.guard import Policy, read_url
from delayed_queue.http.conf import CallbackSettings
from tests.http.callbacks.auditing import Audit, audited
from tests.http.callbacks.names import NameServer
from tests.http.callbacks.sending import names_of, reaching, with_client
from tests.http.callbacks.servers import Receiver
from tests.http.callbacks.urls import EVERY_ADDRESS, EVERY_REFUSED

CLOSED = CallbackSettings()
# Further addresses of a name that has a refused one.
OTHERS = [
    pytest.param((), marks=pytest.mark.long),
    ("8.8.8.8",),
    pytest.param(("8.8.8.8", "2606:2800::1"), marks=pytest.mark.long),
]


class Answering(AbstractResolver):
    """A resolver that counts queries and returns its given addresses."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        return [
            ResolveResult(hostname=host, host=each, port=port, family=family, proto=0, flags=0)
            for each in self.addresses
        ]

    async def close(self) -> None:
        pass


def _itself(resolver: AbstractResolver) -> AbstractResolver:
    return resolver


def audited_send(
    url: str, settings: CallbackSettings, resolver: Callable[[], AbstractResolver]
) -> tuple[CallbackResult, Audit]:
    """Send once; watch the sending alone, without the sockets of the event loop."""

    async def use(client: CallbackClient) -> tuple[CallbackResult, Audit]:
        with audited() as audit:
            return await client.send(CallbackRequest(url, b"{}")), audit

    return with_client(settings, use, resolver)


@pytest.mark.parametrize("url", EVERY_REFUSED)
def test_a_refused_url_opens_no_socket(url: str) -> None:
    resolver = Answering("8.8.8.8")
    result, audit = audited_send(url, CLOSED, lambda: resolver)
    assert result.failure is Failure.BLOCKED
    assert (result.is_ambiguous, result.address, result.status) == (False, "", None)
    assert audit.events == []
    assert resolver.asked == []


@pytest.mark.parametrize("address", EVERY_ADDRESS)
@pytest.mark.parametrize("others", OTHERS)
def test_a_name_with_a_refused_address_opens_no_socket(address, others):
    for answers in ((*others, address), (address, *others)):
        resolver = Answering(*answers)
        url = "http://hooks.example.com/"
        result, audit = audited_send(url, CLOSED, partial(_itself, resolver))
        assert result.failure is Failure.BLOCKED
        assert result.address == ""
        assert address not in result.detail
        assert audit.events == []
        assert resolver.asked == ["hooks.example.com"]


LABELS = st.text("abcXYZ019_-\u00e9\u00df\u0130\uff21\u2460\u3042", min_size=1, max_size=5)


@given(st.lists(LABELS, min_size=2, max_size=4).map(".".join))
@example("B\u00dcCHER.example.com")
@running(deadline=None)
def test_the_name_that_was_checked_is_looked_up(host: str) -> None:
    url = f"http://{host}/"
    try:
        target = read_url(url, Policy())
    except UrlRefused:
        return
    if target.address is not None:  # digits can make an address, which needs no resolver
        return
    resolver = Answering("10.0.0.1")
    result, _ = audited_send(url, CLOSED, partial(_itself, resolver))
    assert result.failure is Failure.BLOCKED
    assert resolver.asked == [target.host]


@pytest.mark.parametrize("url", ["http://hooks.example.com/", "http://8.8.8.8/"])
def test_the_audit_sees_a_dial(url: str) -> None:
    # These networks are unreachable: a socket of another family refuses the dial.
    impatient = CallbackSettings(CONNECT_TIMEOUT=timedelta(milliseconds=1))
    _, audit = audited_send(url, impatient, lambda: Answering("8.8.8.8"))
    assert audit.connected == ["8.8.8.8"]


def test_the_audit_sees_a_lookup() -> None:
    with audited() as audit:
        socket.getaddrinfo("127.0.0.1", 80)
    assert [name for name, _ in audit.events] == ["socket.getaddrinfo"]


class TestRealNames:
    """The names of a DNS server on loopback, resolved over the wire."""

    def send(
        self, names: NameServer, settings: CallbackSettings, port: int = 80
    ) -> tuple[CallbackResult, Audit]:
        url = f"http://hooks.example.com:{port}/"
        return audited_send(url, settings, partial(names_of, names))

    def test_the_address_that_was_checked_is_dialled(self) -> None:
        with Receiver() as receiver, NameServer({"hooks.example.com": ["127.0.0.1"]}) as names:
            result, audit = self.send(names, reaching(receiver), receiver.port)
        assert (result.is_success, result.address) == (True, "127.0.0.1")
        assert audit.connected == ["127.0.0.1"]
        assert len([kind for _, kind in names.queries if kind == 1]) == 1
        [request] = receiver.requests
        assert request.headers["host"] == f"hooks.example.com:{receiver.port}"

    @pytest.mark.parametrize(
        "answers",
        [
            ["127.0.0.1"],
            ["169.254.169.254"],
            ["8.8.8.8", "10.0.0.1"],
            ["10.0.0.1", "8.8.8.8"],
            ["127.0.0.1", "127.0.0.2"],
        ],
    )
    def test_a_private_answer_refuses_the_name(self, answers: list[str]) -> None:
        with Receiver(host="127.0.0.2") as public:
            with NameServer({"hooks.example.com": answers}) as names:
                result, audit = self.send(names, reaching(public), public.port)
            assert result.failure is Failure.BLOCKED
            assert audit.connected == []
            assert public.connections == 0
        assert names.queries

    def test_a_name_that_is_rebound_is_refused(self) -> None:
        turns = {"hooks.example.com": [["127.0.0.2"], ["127.0.0.1"]]}
        with (
            Receiver(host="127.0.0.2") as public,
            Receiver(host="127.0.0.1", port=public.port) as private,
            NameServer(turns) as names,
        ):
            use = partial(self._twice, public)
            results = with_client(reaching(public), use, partial(names_of, names))
        assert [each.failure for each in results] == [None, Failure.BLOCKED]
        assert (public.connections, private.connections) == (1, 0)

    async def _twice(self, public: Receiver, client: CallbackClient) -> list[CallbackResult]:
        request = CallbackRequest(f"http://hooks.example.com:{public.port}/", b"{}")
        first = await client.send(request)
        public.close_connections()
        return [first, await client.send(request)]

    @pytest.mark.parametrize("names", [{}, {"hooks.example.com": []}, {"hooks.example.com": None}])
    def test_names_without_an_answer(self, names: dict[str, Any]) -> None:
        with NameServer(names) as server:
            impatient = CallbackSettings(CONNECT_TIMEOUT=timedelta(seconds=0.5))
            result, audit = self.send(server, impatient)
        assert (result.failure, result.is_ambiguous) == (Failure.DNS, False)
        assert audit.connected == []

    def test_a_dns_server_that_is_slow_ends_in_time(self) -> None:
        impatient = CallbackSettings(CONNECT_TIMEOUT=timedelta(milliseconds=50))
        with NameServer({"hooks.example.com": None}) as server:
            result, _ = self.send(server, impatient)
        assert result.failure is Failure.DNS
        assert result.duration < timedelta(seconds=2)

    def test_an_allowed_name_may_be_private_but_not_metadata(self) -> None:
        with Receiver() as receiver:
            settings = reaching(receiver, ALLOWED_NETWORKS=[], ALLOWED_HOSTS=["*.example.com"])
            with NameServer({"hooks.example.com": ["127.0.0.1"]}) as names:
                assert self.send(names, settings, receiver.port)[0].is_success
            with NameServer({"hooks.example.com": ["127.0.0.1", "169.254.169.254"]}) as names:
                result, audit = self.send(names, settings, receiver.port)
        assert result.failure is Failure.BLOCKED
        assert audit.connected == []


def test_the_systems_names_are_guarded() -> None:
    """By getaddrinfo, which resolves localhost, and without a proxy from the environment."""
    with Receiver() as receiver:
        url = f"http://localhost:{receiver.port}/"
        settings = reaching(receiver, ALLOWED_NETWORKS=[], ALLOWED_HOSTS=["localhost"])
        result, _ = audited_send(url, settings, ThreadedResolver)
        assert result.is_success
        refusing = CallbackSettings(ALLOWED_PORTS=[receiver.port])
        result, audit = audited_send(url, refusing, ThreadedResolver)
        assert result.failure is Failure.BLOCKED
        assert audit.events == []
    assert receiver.connections == 1


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"])
def test_the_proxy_of_the_environment_is_not_used(name, monkeypatch):
    with Receiver() as proxy, Receiver() as receiver:
        monkeypatch.setenv(name, proxy.url)
        result, _ = audited_send(
            receiver.url, reaching(proxy, receiver), lambda: Answering("127.0.0.1")
        )
        assert result.is_success
    assert (proxy.connections, receiver.connections) == (0, 1)
