"""Every hostile response ends in time, costs bounded memory and has its failure code (J9)."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import sentry_sdk
from aiohttp import ClientSession
from sentry_sdk.envelope import Envelope as SentryEnvelope
from sentry_sdk.integrations.aiohttp import AioHttpIntegration
from sentry_sdk.transport import Transport

from delayed_queue import __version__
from delayed_queue.http.callbacks.calls import Failure
from delayed_queue.http.callbacks.exchanges import BODY_BYTES, MeteredSocket
from tests.http.callbacks import servers
from tests.http.callbacks.sending import reaching, send_once
from tests.http.callbacks.servers import Behaviour, Receiver, answering, redirecting, writing

# The time of a callback in tests of an answer that never ends; in others it only ends a hang.
TOTAL, HANG = timedelta(seconds=1), timedelta(seconds=30)
# Delay that the machine may add to a deadline.
SLACK = timedelta(seconds=2)
METADATA = "http://169.254.169.254/latest/meta-data/"

# behaviour, failure, status, is it ambiguous
CASES: dict[str, tuple[Behaviour, Failure | None, int | None, bool]] = {
    "200": (answering(200), None, 200, False),
    "201": (answering(201), None, 201, False),
    "204": (writing(b"HTTP/1.1 204 No Content\r\n\r\n"), None, 204, False),
    "204 with a body": (writing(b"HTTP/1.1 204 None\r\n\r\nbody"), Failure.PROTOCOL, None, True),
    "205": (answering(205, b""), None, 205, False),
    "299": (answering(299), None, 299, False),
    "304": (writing(b"HTTP/1.1 304 Not Modified\r\n\r\n"), Failure.STATUS, 304, False),
    "300": (answering(300), Failure.STATUS, 300, False),
    "400": (answering(400), Failure.STATUS, 400, False),
    "410": (answering(410), Failure.STATUS, 410, False),
    "500": (answering(500), Failure.STATUS, 500, False),
    "999": (answering(999), Failure.STATUS, 999, False),
    "301": (redirecting("http://127.0.0.1/", 301), Failure.STATUS, 301, False),
    "307 to metadata": (redirecting(METADATA, 307), Failure.STATUS, 307, False),
    "308 to metadata": (redirecting(METADATA, 308), Failure.STATUS, 308, False),
    "302 to a file": (redirecting("file:///etc/passwd"), Failure.STATUS, 302, False),
    "302 to nonsense": (redirecting("http://[::1"), Failure.STATUS, 302, False),
    "silence": (servers.silent, Failure.TIMEOUT, None, True),
    "slow headers": (servers.SLOW_HEADERS, Failure.TIMEOUT, None, True),
    "dripping body": (servers.DRIPPING_BODY, Failure.TIMEOUT, 200, True),
    "endless body": (servers.ENDLESS_BODY, None, 200, False),
    "endless chunks": (servers.ENDLESS_CHUNKS, None, 200, False),
    "endless extension": (servers.ENDLESS_CHUNK_EXTENSION, Failure.PROTOCOL, 200, True),
    "endless trailers": (servers.ENDLESS_TRAILERS, Failure.PROTOCOL, 200, True),
    "endless headers": (servers.ENDLESS_HEADERS, Failure.PROTOCOL, None, True),
    "endless header": (servers.ENDLESS_HEADER, Failure.PROTOCOL, None, True),
    "endless status line": (servers.ENDLESS_STATUS_LINE, Failure.PROTOCOL, None, True),
    "endless continues": (servers.ENDLESS_CONTINUES, Failure.TOO_LARGE, None, True),
    "huge headers": (servers.HUGE_HEADERS, Failure.TOO_LARGE, None, True),
    "gzip bomb": (servers.gzip_bomb(), None, 200, False),
    "closing": (servers.closing, Failure.RESET, None, True),
    "resetting": (servers.resetting, Failure.RESET, None, True),
    "resetting mid-headers": (servers.RESETTING_MID_HEADERS, Failure.RESET, None, True),
    "resetting mid-body": (servers.RESETTING_MID_BODY, Failure.RESET, 200, True),
    "longer than sent": (servers.LONGER_THAN_SENT, Failure.RESET, 200, True),
    "longer and open": (servers.LONGER_THAN_SENT_AND_OPEN, Failure.TIMEOUT, 200, True),
    "shorter than sent": (servers.SHORTER_THAN_SENT, Failure.PROTOCOL, None, True),
    "shorter, by parts": (servers.SHORTER_BY_PARTS, None, 200, False),
    "garbage chunks": (servers.GARBAGE_CHUNKS, Failure.PROTOCOL, None, True),
    "garbage chunks, by parts": (servers.GARBAGE_CHUNKS_BY_PARTS, Failure.PROTOCOL, 200, True),
    "cut chunks": (servers.CUT_CHUNKS, Failure.RESET, 200, True),
    "both lengths": (servers.BOTH_LENGTHS, Failure.PROTOCOL, None, True),
    "two lengths": (servers.TWO_LENGTHS, Failure.PROTOCOL, None, True),
    "negative length": (servers.NEGATIVE_LENGTH, Failure.PROTOCOL, None, True),
    "HTTP/0.9": (servers.HTTP_09, Failure.PROTOCOL, None, True),
    "no HTTP": (servers.NO_HTTP, Failure.PROTOCOL, None, True),
    "continue, then 200": (servers.CONTINUE_THEN_OK, None, 200, False),
    "continue, then nothing": (servers.CONTINUE_THEN_NOTHING, Failure.RESET, None, True),
    "switching protocols": (servers.SWITCHING, Failure.STATUS, 101, False),
}


def cases() -> list[Any]:
    return [pytest.param(*case, id=name) for name, case in CASES.items()]


@pytest.mark.parametrize(("behaviour", "failure", "status", "is_ambiguous"), cases())
def test_the_outcome_of_an_answer(behaviour, failure, status, is_ambiguous):
    total = TOTAL if failure is Failure.TIMEOUT else HANG
    with Receiver(behaviour) as receiver:
        result = send_once(receiver.url, reaching(receiver, TOTAL_TIMEOUT=total))
    assert (result.failure, result.status) == (failure, status), result
    assert result.is_ambiguous is is_ambiguous
    assert result.is_success is (failure is None)
    assert bool(result.detail) is (failure is not None)
    assert result.duration < total + SLACK
    assert result.bytes_read <= BODY_BYTES
    assert len(result.excerpt.encode()) <= 1024
    assert result.address == receiver.host
    # In each case the callback was sent once, to one address.
    assert (receiver.connections, len(receiver.requests)) == (1, 1)


LARGE = [name for name in CASES if name.startswith(("endless", "huge", "gzip"))]


@pytest.mark.parametrize("name", LARGE)
def test_the_memory_that_a_large_answer_costs(name: str) -> None:
    behaviour = CASES[name][0]
    with Receiver(behaviour) as receiver:
        settings = reaching(receiver)
        send_once(receiver.url, settings)
        tracemalloc.start()
        try:
            send_once(receiver.url, settings)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # Includes the buffers of the receiver, which runs in the same process.
    assert peak < 3 * 2**20


@pytest.mark.parametrize("allowance", [0, 1, 100, 1_000_000])
def test_a_socket_reads_its_allowance_and_no_more(allowance: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        info = (socket.AF_INET, socket.SOCK_STREAM, 0, "", server.getsockname())
        opened: dict[int, MeteredSocket] = {}
        with MeteredSocket(info, opened) as reader:
            assert list(opened.values()) == [reader]
            reader.connect(server.getsockname())
            writer, _ = server.accept()
            threading.Thread(target=_write_all, args=(writer, 2 * allowance + 2)).start()
            reader.allowance = allowance
            assert _read_until_refused(reader) == allowance
        assert opened == {}


def _write_all(writer: socket.socket, number: int) -> None:
    with writer, suppress(OSError):
        writer.sendall(b"." * number)


def _read_until_refused(reader: MeteredSocket) -> int:
    """Return the number of bytes before the refusal."""
    got: list[int] = []
    with pytest.raises(OSError, match="more was sent than is read"):
        _read_all(reader, got)
    return sum(got)


def _read_all(reader: MeteredSocket, got: list[int]) -> None:
    into = bytearray(65_536)
    while True:
        got.append(len(reader.recv(65_536)))
        got.append(reader.recv_into(into))


def test_a_body_of_what_is_read_is_all_there() -> None:
    body = bytes(range(256)) * (BODY_BYTES // 256)
    with Receiver(answering(body=body)) as receiver:
        result = send_once(receiver.url, reaching(receiver))
    assert (result.is_success, result.bytes_read) == (True, BODY_BYTES)


def test_what_is_sent() -> None:
    body = bytes(range(256)) * 1024
    with Receiver() as receiver:
        assert send_once(f"{receiver.url}/a%2Fb?c=d%20e", reaching(receiver), body=body).is_success
    [request] = receiver.requests
    assert request.line == "POST /hook/a%2Fb?c=d%20e HTTP/1.1"
    assert request.body == body
    assert request.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "user-agent": f"delayed-queue/{__version__}",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "accept": "*/*",
        "accept-encoding": "identity",
    }


def test_a_receiver_that_answers_before_it_has_read() -> None:
    with Receiver(unread=answering(413)) as receiver:
        result = send_once(receiver.url, reaching(receiver), body=b"." * 256 * 1024)
    assert (result.failure, result.status) == (Failure.STATUS, 413)


def test_a_receiver_that_reads_nothing_ends_in_time() -> None:
    with Receiver(unread=servers.forgetting) as receiver:
        settings = reaching(receiver, TOTAL_TIMEOUT=TOTAL)
        result = send_once(receiver.url, settings, body=b"." * 32_000_000)
    assert (result.failure, result.is_ambiguous) == (Failure.TIMEOUT, True)
    assert result.duration < TOTAL + SLACK


def test_the_excerpt_of_an_answer() -> None:
    body = b"no\x00 such\x1b[31m \xff order\n" + "\u202e\u00e9".encode() + b"." * 5000
    with Receiver(answering(404, body)) as receiver:
        result = send_once(receiver.url, reaching(receiver))
    assert result.excerpt.startswith("no\ufffd such\ufffd[31m \ufffd order\n\ufffd\u00e9....")
    assert len(result.excerpt.encode()) <= 1024
    assert "order" not in repr(result)


def test_an_encoded_answer_is_not_decoded() -> None:
    body = gzip.compress(b"a" * 100_000)
    with Receiver(answering(body=body, headers={"Content-Encoding": "gzip"})) as receiver:
        result = send_once(receiver.url, reaching(receiver))
    assert result.bytes_read == len(body)
    assert result.excerpt == f"({len(body)} bytes or more, encoded)"


class Silent(Transport):
    def capture_envelope(self, envelope: SentryEnvelope) -> None:
        pass


@pytest.fixture
def sentry() -> Iterator[None]:
    """Sentry with full tracing: its integration of aiohttp adds headers."""
    integrations = [AioHttpIntegration()]
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1", traces_sample_rate=1.0, transport=Silent(),
        default_integrations=False, integrations=integrations,
    )  # fmt: skip
    yield
    sentry_sdk.init(default_integrations=False)


def test_sentry_adds_no_header(sentry: None) -> None:
    async def plain(url: str) -> None:
        async with ClientSession() as session, session.post(url):
            pass

    with Receiver() as receiver, sentry_sdk.start_transaction(name="request"):
        asyncio.run(plain(receiver.url))
        send_once(receiver.url, reaching(receiver))
        theirs, ours = ({name.lower() for name in each.headers} for each in receiver.requests)
    assert {"sentry-trace", "baggage"} <= theirs
    assert not {"sentry-trace", "baggage"} & ours
