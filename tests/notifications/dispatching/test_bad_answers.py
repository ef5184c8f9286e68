"""Broken provider responses: cut, split, slow, invalid, or too private to store (N7, N8)."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from delayed_queue.notifications import services
from delayed_queue.notifications.models import Delivery, Status
from delayed_queue.notifications.providers import Outcome, Provider, Verdict
from delayed_queue.notifications.providers.apprises import AppriseProvider
from delayed_queue.notifications.providers.email import EmailProvider
from delayed_queue.notifications.providers.http import HttpSmsProvider, WebhookProvider
from delayed_queue.notifications.settling import Call, Settlement, settling
from tests.notifications.dispatchers import SENDER
from tests.notifications.dispatching.scripted import ScriptedHttp, ScriptedSmtp
from tests.notifications.factories import Held, begin, enqueue, lease, outgoing
from tests.notifications.fakes import FakeSmtp, Server

BEGUN = outgoing(channel="sms", recipient="+40721234567", body="Code 7.", provider="texts")
CODES = {"blocked": "permanent"}


def answer(status: str, body: bytes, *parts: bytes, length: int = 0) -> list[bytes]:
    """An HTTP response; its body may come in parts, and be shorter than Content-Length."""
    total = length or len(body) + sum(map(len, parts))
    return [b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status.encode(), total), body, *parts]


def asked(parts: Sequence[bytes], *, hangs: bool = False, **options: Any) -> Outcome:
    """Return the verdict of an SMS provider on that response."""

    async def ask(url: str) -> Outcome:
        provider = HttpSmsProvider("texts", url=url, codes=CODES, **{"timeout": 5.0} | options)
        try:
            return await provider.send(BEGUN)
        finally:
            await provider.aclose()

    with ScriptedHttp(parts, hangs=hangs) as server:
        outcome = asyncio.run(ask(server.url))
        assert server.total == 1
        return outcome


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("90", 90), ("Thu, 01 Jan 2026 00:01:30 GMT", 90), ("0", 0), ("soon", None), ("-5", None),
     ("Wed, 31 Dec 2025 00:00:00 GMT", 0), ("9" * 30, 24 * 3600)],
)  # fmt: skip
def test_j17_a_providers_retry_after_is_read_as_a_receivers_is(value: str, seconds: int | None):
    head = f"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: {value}\r\n"
    outcome = asked([f"{head}Date: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n".encode()])
    assert outcome.retry_after == (None if seconds is None else timedelta(seconds=seconds))


def test_n8_a_refusal_that_comes_in_parts_is_read_to_its_end():
    outcome = asked(answer("200 OK", b'{"co', b'de": "blo', b'cked"}'))
    assert (outcome.verdict, outcome.code) == (Verdict.PERMANENT, "blocked")


@pytest.mark.parametrize(
    ("parts", "hangs", "verdict", "code"),
    [
        (answer("200 OK", b'{"id": 1', length=99), False, "ambiguous", "ClientPayloadError"),
        (answer("200 OK", b'{"id": 1', length=99), True, "ambiguous", "TimeoutError"),
        (answer("400 Bad Request", b"{", length=99), False, "permanent", "400"),
        (answer("400 Bad Request", b"{", length=99), True, "permanent", "400"),
        (answer("503 Busy", b"", length=99), True, "transient", "503"),
        (answer("200 OK", b"[" * 60_000), False, "accepted", "200"),
        (answer("200 OK", b"9" * 60_000), False, "accepted", "200"),
        (answer("200 OK", b"x" * 300_000), False, "accepted", "200"),
        ([b"SSH-2.0-OpenSSH\r\n"], False, "ambiguous", "ClientResponseError"),
    ],
    ids=[
        "cut", "silent", "refused-cut", "refused-silent", "busy-silent", "deep", "huge number",
        "long", "another protocol",
    ],
)  # fmt: skip
def test_n8_what_became_of_an_answer_decides_only_what_its_status_does_not(
    parts: list[bytes], hangs: bool, verdict: str, code: str
):
    outcome = asked(parts, hangs=hangs, timeout=0.5)
    assert (outcome.verdict, outcome.code) == (verdict, code)


def test_n8_an_answer_that_nobody_asked_to_be_compressed_is_not_decompressed():
    body = gzip.compress(b'{"id": "' + b"7" * 1_000_000 + b'"}')
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    outcome = asked([head, body])
    assert (outcome.verdict, outcome.provider_id) == (Verdict.ACCEPTED, "")


@pytest.mark.parametrize(
    "told", ["no route to +40721234567", "40721234567", "ada@example.org", "x" * 51, "a\\nb", ""]
)
def test_n4_what_a_provider_says_in_place_of_a_code_is_not_shown_as_one(told: str):
    """It appears in lists and logs, and may be the recipient."""
    outcome = asked(answer("400 Bad Request", b'{"code": "%s"}' % told.encode()))
    assert outcome.code == "400"


@pytest.mark.django_db
def test_n3_ids_that_cannot_be_stored_keep_no_end_from_being_written():
    rows = [enqueue(channel=each) for each in ("email", "sms")]
    begun = [begin(lease(each)) for each in rows]
    calls = [
        Call("texts", Delivery.Outcome.SENT, "a\x00b\ud800c", "\ud800" * 200, "\x00\ud800"),
        Call("mail", Delivery.Outcome.SENT, "fine"),
    ]
    settled: Any = [
        (Held(each), Settlement(Status.SUCCESSFULLY_PROCESSED, [call], "\x00", attempt=1))
        for each, call in zip(begun, calls, strict=True)
        if each is not None
    ]
    assert len(services.fetch(*settling(settled, [held for held, _ in settled]))) == 2
    rows[0].refresh_from_db()
    assert rows[0].provider_id == "a\ufffdb?c"


# SMTP


def mailed(server: Server, **options: Any) -> Outcome:
    """Return the outcome of a mail over this server; fail if a thread would be held for ever."""
    provider = EmailProvider(
        "mail", sender=SENDER, host="127.0.0.1", port=server.port, threads=1, timeout=0.5, **options
    )
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(provider.send_now, outgoing()).result(20)
    finally:
        server.release()
        pool.shutdown(wait=False)
        provider.close()


@pytest.mark.parametrize("greeting", [b"554 nobody may connect", b"nonsense"])
def test_n8_a_server_that_refuses_all_who_connect_refuses_no_message(greeting: bytes):
    with ScriptedSmtp(greeting) as server:
        outcome = mailed(server)
    assert (outcome.verdict, outcome.blames_provider) == (Verdict.TRANSIENT, True)


@pytest.mark.parametrize(
    "greeting", [b"421 later", b"421 4.7.0 too many connections", b"450 4.3.2 busy"]
)
def test_n19_a_connection_refused_for_lack_of_capacity_is_no_call(greeting: bytes):
    with ScriptedSmtp(greeting) as server:
        assert mailed(server).verdict is Verdict.BUSY


@pytest.mark.parametrize("options", [{"use_tls": True}, {"username": "a", "password": "b"}])
def test_n8_a_server_without_what_we_need_of_it_refuses_no_message(options: dict[str, Any]):
    with FakeSmtp() as server:
        outcome = mailed(server, **options)
        assert not server.seen
    assert (outcome.verdict, outcome.blames_provider) == (Verdict.TRANSIENT, True)


class Contended(list[Any]):
    """Idle connections of which another thread takes the last one just before."""

    def pop(self, *args: Any) -> Any:
        self.clear()
        return super().pop(*args)


def test_n25_a_connection_that_another_thread_takes_is_replaced(monkeypatch: pytest.MonkeyPatch):
    with FakeSmtp() as server:
        provider = EmailProvider("mail", sender=SENDER, host="127.0.0.1", port=server.port)
        monkeypatch.setattr(provider, "_idle", Contended())
        outcomes = [provider.send_now(outgoing()).verdict for _ in range(3)]
        provider.close()
    assert outcomes == [Verdict.ACCEPTED] * 3


# N24: faults of the settings


@pytest.mark.parametrize(
    "provider",
    [
        EmailProvider("a", sender=SENDER, backend="anymail.Nope"),
        EmailProvider("a", sender=SENDER, use_tls=True, use_ssl=True),
        HttpSmsProvider("a", url="http://127.0.0.1:9", headers={"X-Key": "a\r\nB: c"}),
        WebhookProvider("a", secrets=["nonsense"]),
        AppriseProvider("a", url="nonsense"),
    ],
    ids=["backend", "options", "header", "secret", "url"],
)
@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
@pytest.mark.django_db
def test_n24_a_fault_of_the_setting_blames_the_provider(provider: Provider):
    begun = outgoing(channel="webhook", recipient="https://shop.example/hook", body="{}")

    async def send() -> Outcome:
        try:
            return await provider.send(begun)
        finally:
            if isinstance(provider, HttpSmsProvider):
                await provider.aclose()

    outcome = asyncio.run(send())
    provider.close()
    assert (outcome.verdict, outcome.blames_provider) == (Verdict.TRANSIENT, True)
