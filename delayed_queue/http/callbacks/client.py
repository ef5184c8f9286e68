"""Send callbacks: a pool of connections per event loop, guarded dials and bounded answers."""

from __future__ import annotations

import asyncio
import errno
import io
import ssl
import time
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import Final

from aiohttp import (
    ClientConnectorDNSError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    TCPConnector,
)
from aiohttp.abc import AbstractResolver
from aiohttp.resolver import DefaultResolver

from delayed_queue import __version__
from delayed_queue.db.gathering import LoopLocal
from delayed_queue.exceptions import UrlRefused
from delayed_queue.http.callbacks.calls import (
    CallbackRequest,
    CallbackResult,
    Failure,
    excerpt_of,
    retry_after_of,
)
from delayed_queue.http.callbacks.exchanges import (
    BODY_BYTES,
    Enter,
    Exchange,
    GuardedRequest,
    GuardedResolver,
    Sockets,
    SpoiledConnection,
    current,
)
from delayed_queue.http.callbacks.gate import Withdrawn
from delayed_queue.http.callbacks.guard import Policy, Target, read_url
from delayed_queue.http.conf import CallbackSettings, callback_settings

# Seconds that an idle connection is kept. Some servers close theirs after 2 s, and a POST that
# crosses the close cannot be repeated.
KEEP_ALIVE: Final = 1.5
LARGE_BODY: Final = 2**20
HEADERS: Final = {
    "User-Agent": f"delayed-queue/{__version__}",
    "Content-Type": "application/json",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
}


class CallbackClient:
    """Sends callbacks over a pool of connections; for one event loop, in which it is made.

    ``resolver`` replaces the system's DNS; its answers are guarded like those.
    """

    def __init__(
        self, settings: CallbackSettings | None = None, *, resolver: AbstractResolver | None = None
    ) -> None:
        self._settings = callback_settings() if settings is None else settings
        self._policy = Policy.of(self._settings)
        # Cached, because urls repeat and reading one is a tenth of a callback's work.
        self._read_url = lru_cache(1024)(partial(read_url, policy=self._policy))
        self.sockets = Sockets()
        self._resolver = GuardedResolver(resolver or DefaultResolver())
        self._slots = asyncio.Semaphore(self._settings.CONNECTIONS)
        self._session = self._new_session()

    async def close(self) -> None:
        """Close the open connections."""
        await self._session.close()
        await self._resolver.close()

    async def send(self, request: CallbackRequest, enter: Enter | None = None) -> CallbackResult:
        """Send once and return the result; failures of the receiver are not raised.

        While CONNECTIONS callbacks are on the wire it waits; the time limits start after that.
        ``enter`` is called with a connection, before anything is written. Its errors are raised,
        and Withdrawn if the first byte could not leave in time; then nothing was sent.
        """
        async with self._slots:
            self.sockets.in_use += 1
            try:
                return await self._attempt(request, enter)
            finally:
                self.sockets.in_use -= 1

    def _new_session(self) -> ClientSession:
        connector = TCPConnector(
            resolver=self._resolver,
            socket_factory=self.sockets,
            # Cached answers would bypass the guard, and outlive their DNS records.
            use_dns_cache=False,
            ssl=_ssl_context(self._settings.CA_FILE),
            keepalive_timeout=KEEP_ALIVE,
            limit=0,  # the semaphore is the limit
        )
        return ClientSession(
            connector=connector,
            request_class=GuardedRequest,
            headers=HEADERS,
            cookie_jar=DummyCookieJar(),
            timeout=self._connect_timeout(),
            auto_decompress=False,
            trust_env=False,
            read_bufsize=BODY_BYTES,
        )

    def _connect_timeout(self) -> ClientTimeout:
        # The total is limited in _attempt. Without a threshold, aiohttp rounds up to seconds.
        seconds = self._settings.CONNECT_TIMEOUT.total_seconds()
        return ClientTimeout(total=None, connect=seconds, ceil_threshold=float("inf"))

    async def _attempt(self, request: CallbackRequest, enter: Enter | None) -> CallbackResult:
        most = request.fetches or BODY_BYTES
        exchange = Exchange(self._policy, self.sockets, enter=enter, most=most)
        token = current.set(exchange)
        began = time.monotonic()
        error: BaseException | None = None
        try:
            total = self._settings.TOTAL_TIMEOUT.total_seconds()
            async with asyncio.timeout(total) as exchange.deadline:
                await self._exchange(request, exchange)
        except ERRORS as caught:
            error = caught
        finally:
            current.reset(token)
            exchange.finish()
        if exchange.is_withdrawn:
            raise Withdrawn
        result = self._result(exchange, error, timedelta(seconds=time.monotonic() - began))
        if not request.fetches:
            return result
        is_plain = exchange.headers.get("Content-Encoding", "identity") == "identity"
        return replace(result, body=bytes(exchange.body) if is_plain else None)

    async def _exchange(self, request: CallbackRequest, exchange: Exchange) -> None:
        target = self._read_url(request.url)
        exchange.host, exchange.is_resolved = target.host, target.address is not None
        while True:
            try:
                await self._post(target, request, exchange)
            except SpoiledConnection:
                # Nothing was sent, and the connection is gone from the pool.
                continue
            return

    async def _post(self, target: Target, request: CallbackRequest, exchange: Exchange) -> None:
        # aiohttp never repeats a POST, not even on a pooled connection that broke.
        body = request.body
        # aiohttp writes bytes at once, and warns about large ones.
        data = io.BytesIO(body) if len(body) > LARGE_BODY else body
        method, content = ("GET", None) if request.fetches else ("POST", data)
        async with self._session.request(
            method, target.url, data=content, headers=request.headers, allow_redirects=False
        ) as response:
            exchange.status, exchange.headers = response.status, response.headers
            exchange.content = response.content
            await _read(response, exchange.body, exchange.most)

    def _result(
        self, exchange: Exchange, error: BaseException | None, duration: timedelta
    ) -> CallbackResult:
        failure, detail = outcome_of(error, exchange)
        return CallbackResult(
            duration=duration,
            failure=failure,
            detail=detail,
            status=exchange.status,
            is_ambiguous=failure is not None and exchange.is_sent and not exchange.is_refused,
            address=exchange.address,
            retry_after=self._asked_wait(exchange),
            excerpt=excerpt_of(bytes(exchange.body), exchange.headers.get("Content-Encoding", "")),
            bytes_read=len(exchange.body),
        )

    def _asked_wait(self, exchange: Exchange) -> timedelta | None:
        if not exchange.is_refused:
            return None
        return retry_after_of(exchange.headers, self._settings.RETRY_AFTER_LIMIT)


async def _read(response: ClientResponse, body: bytearray, most: int) -> None:
    """Read the start of an answer; the connection of a longer one is closed."""
    while len(body) < most:
        chunk = await response.content.read(most - len(body))
        if not chunk:
            return
        body += chunk
    if not response.content.at_eof():
        response.close()


def _ssl_context(ca_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file:
        context.load_verify_locations(ca_file)
    context.set_alpn_protocols(["http/1.1"])
    context.hostname_checks_common_name = False
    return context


def _client(key: None) -> CallbackClient:
    return CallbackClient()


clients: Final[LoopLocal[None, CallbackClient]] = LoopLocal(_client, CallbackClient.close)


async def send(request: CallbackRequest, enter: Enter | None = None) -> CallbackResult:
    """Send with the event loop's own client, made with the settings at its first use."""
    return await clients.of(None).send(request, enter)


async def fetch(url: str, most: int) -> CallbackResult:
    """GET at most N bytes of an answer's body, under the same guard and time limits."""
    return await send(CallbackRequest(url, b"", fetches=most))


# Expected errors of an exchange. Any other is a bug, which the worker reports.
ERRORS: Final = (ClientError, OSError, UrlRefused)
_BY_CLASS: Final = (
    (ClientSSLError, Failure.TLS),
    (ssl.SSLError, Failure.TLS),
    (ClientConnectorDNSError, Failure.DNS),
    (ServerDisconnectedError, Failure.RESET),
    (ClientResponseError, Failure.PROTOCOL),
)
_BY_ERRNO: Final = {
    errno.ECONNREFUSED: Failure.REFUSED,
    errno.ECONNRESET: Failure.RESET,
    errno.EPIPE: Failure.RESET,
    errno.ECONNABORTED: Failure.RESET,
    errno.ETIMEDOUT: Failure.CONNECT_TIMEOUT,
    # Local causes: no files, memory or ports left. They say nothing about the receiver.
    errno.EMFILE: Failure.LOCAL,
    errno.ENFILE: Failure.LOCAL,
    errno.ENOBUFS: Failure.LOCAL,
    errno.ENOMEM: Failure.LOCAL,
    errno.EADDRNOTAVAIL: Failure.LOCAL,
}
DETAILS: Final = {
    Failure.BLOCKED: "The url leads to an address that callbacks must not reach.",
    Failure.DNS: "The name was not found, or its DNS did not answer.",
    Failure.REFUSED: "The host refused the connection.",
    Failure.UNREACHABLE: "The host could not be reached.",
    Failure.CONNECT_TIMEOUT: "No connection was made in time.",
    Failure.TLS: "No trusted TLS connection could be made; check the certificate.",
    Failure.TIMEOUT: "The answer was not complete in time.",
    Failure.RESET: "The connection was closed before the answer was complete.",
    Failure.PROTOCOL: "The answer was not valid HTTP.",
    Failure.TOO_LARGE: "The answer had more headers or frames than are read.",
    Failure.LOCAL: "No local connection was available; the host was not called.",
}


def outcome_of(error: BaseException | None, exchange: Exchange) -> tuple[Failure | None, str]:
    """Return the failure, None for success, and a sentence about it."""
    if exchange.is_refused:
        return Failure.STATUS, f"The answer was {exchange.status}; 200 to 299 means success."
    if error is None:
        return None, ""
    if isinstance(error, UrlRefused):
        return Failure.BLOCKED, str(error)
    failure = Failure.TOO_LARGE if exchange.is_overrun else _by_class(error, exchange)
    return failure, DETAILS[failure]


def _by_class(error: BaseException, exchange: Exchange) -> Failure:
    for cls, failure in _BY_CLASS:
        if isinstance(error, cls):
            return failure
    if isinstance(error, ClientPayloadError):
        # aiohttp closes at an invalid body, so an end without our close is a reset. Under TLS this
        # is not always visible.
        return Failure.RESET if exchange.is_ended else Failure.PROTOCOL
    if isinstance(error, TimeoutError) and error.errno is None:
        return Failure.TIMEOUT if exchange.is_sent else _late(exchange)
    if isinstance(error, OSError):
        return _by_errno(error, exchange)
    return Failure.PROTOCOL if exchange.is_sent else Failure.UNREACHABLE


def _late(exchange: Exchange) -> Failure:
    return Failure.CONNECT_TIMEOUT if exchange.is_resolved else Failure.DNS


def _by_errno(error: OSError, exchange: Exchange) -> Failure:
    otherwise = Failure.RESET if exchange.is_sent else Failure.UNREACHABLE
    return _BY_ERRNO.get(error.errno or 0, otherwise)
