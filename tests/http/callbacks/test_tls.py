"""TLS: trusted certificates, the handshake, and hostile answers under it."""

from __future__ import annotations

import ssl
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from delayed_queue.http.callbacks.calls import CallbackResult, Failure
from tests.http.callbacks import servers
from tests.http.callbacks.certificates import DAY, NOW, Authority, authority
from tests.http.callbacks.names import NameServer
from tests.http.callbacks.sending import names_of, reaching, send_all, send_once
from tests.http.callbacks.servers import Receiver


@pytest.fixture
def trusted(tmp_path: Path) -> Authority:
    return authority(tmp_path)


def send_to(tls: ssl.SSLContext, ca_file: str) -> CallbackResult:
    with Receiver(tls=tls) as receiver:
        result = send_once(receiver.url, reaching(receiver, CA_FILE=ca_file))
    if not result.is_success:
        assert receiver.requests == []
    return result


def test_a_good_certificate(trusted: Authority) -> None:
    assert send_to(trusted.serving("127.0.0.1"), trusted.file).is_success


def test_of_a_name_and_with_the_name_in_the_handshake(trusted: Authority) -> None:
    asked: list[str | None] = []
    context = trusted.serving("hooks.example.com")
    context.sni_callback = lambda _, name, __: asked.append(name)
    answers = {"hooks.example.com": ["127.0.0.1"]}
    with Receiver(tls=context) as receiver, NameServer(answers) as names:
        url = f"https://HOOKS.example.com:{receiver.port}/"
        settings = reaching(receiver, CA_FILE=trusted.file)
        result = send_once(url, settings, partial(names_of, names))
    assert result.is_success
    assert asked == ["hooks.example.com"]


def test_connections_with_tls_are_reused(trusted: Authority) -> None:
    with Receiver(tls=trusted.serving("127.0.0.1")) as receiver:
        results = send_all(receiver, 4, CA_FILE=trusted.file)
    assert all(each.is_success for each in results)
    # TLS writes after its handshake may lose at most one.
    assert receiver.connections <= 2


@pytest.mark.parametrize(
    "serving",
    [
        lambda trusted: trusted.serving("other.example.com"),
        lambda trusted: trusted.serving("127.0.0.2"),
        lambda trusted: trusted.serving("127.0.0.1", ends=NOW - DAY),
        lambda trusted: trusted.serving_self_signed("127.0.0.1"),
    ],
    ids=["other name", "other address", "expired", "self-signed"],
)
def test_bad_certificates(trusted, serving):
    result = send_to(serving(trusted), trusted.file)
    assert (result.failure, result.is_ambiguous) == (Failure.TLS, False)


def test_an_unknown_authority(trusted: Authority) -> None:
    assert send_to(trusted.serving("127.0.0.1"), "").failure is Failure.TLS


def test_a_server_without_tls() -> None:
    with Receiver(unread=servers.writing(b"HTTP/1.1 200 OK\r\n\r\n")) as receiver:
        result = send_once(receiver.url.replace("http:", "https:"), reaching(receiver))
    assert (result.failure, result.is_ambiguous) == (Failure.TLS, False)


def test_a_handshake_that_does_not_end() -> None:
    with Receiver(unread=servers.silent) as receiver:
        url = receiver.url.replace("http:", "https:")
        settings = reaching(receiver, CONNECT_TIMEOUT=timedelta(seconds=0.2))
        result = send_once(url, settings)
    assert (result.failure, result.is_ambiguous) == (Failure.CONNECT_TIMEOUT, False)


@pytest.mark.parametrize(
    ("behaviour", "failures"),
    [
        (servers.ENDLESS_BODY, {None}),
        (servers.ENDLESS_CONTINUES, {Failure.TOO_LARGE}),
        (servers.DRIPPING_BODY, {Failure.TIMEOUT}),
        (servers.closing, {Failure.RESET}),
        # TLS sometimes hides which side closed the connection.
        (servers.RESETTING_MID_BODY, {Failure.RESET, Failure.PROTOCOL}),
        (servers.GARBAGE_CHUNKS_BY_PARTS, {Failure.PROTOCOL}),
    ],
)
def test_hostile_answers_under_tls(trusted, behaviour, failures):
    with Receiver(behaviour, tls=trusted.serving("127.0.0.1")) as receiver:
        total = timedelta(seconds=2)
        settings = reaching(receiver, CA_FILE=trusted.file, TOTAL_TIMEOUT=total)
        result = send_once(receiver.url, settings)
    assert result.failure in failures
    assert len(receiver.requests) == 1
