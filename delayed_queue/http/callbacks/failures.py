"""The reasons why an exchange failed: errors of aiohttp and the system in our own words."""

from __future__ import annotations

import errno
import ssl
from typing import Final

from aiohttp import (
    ClientConnectorDNSError,
    ClientError,
    ClientPayloadError,
    ClientResponseError,
    ClientSSLError,
    ServerDisconnectedError,
)

from delayed_queue.exceptions import UrlRefused
from delayed_queue.http.callbacks.exchanges import Exchange
from delayed_queue.http.callbacks.outcomes import Failure

# What an exchange may end with; anything else is a bug, and for the worker to report.
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
    # Ours: no files, no memory, no local ports left. The receiver has nothing to do with it.
    errno.EMFILE: Failure.LOCAL,
    errno.ENFILE: Failure.LOCAL,
    errno.ENOBUFS: Failure.LOCAL,
    errno.ENOMEM: Failure.LOCAL,
    errno.EADDRNOTAVAIL: Failure.LOCAL,
}
DETAILS: Final = {
    Failure.BLOCKED: "The url leads to what a callback must not reach.",
    Failure.DNS: "The name was not found, or its DNS did not answer.",
    Failure.REFUSED: "The host refused the connection.",
    Failure.UNREACHABLE: "The host could not be reached.",
    Failure.CONNECT_TIMEOUT: "No connection was made in time.",
    Failure.TLS: "No trusted TLS connection could be made; look at the certificate.",
    Failure.TIMEOUT: "The answer was not complete in time.",
    Failure.RESET: "The connection was closed before the answer was complete.",
    Failure.PROTOCOL: "The answer was not valid HTTP.",
    Failure.TOO_LARGE: "The answer had more headers or frames than are read.",
    Failure.LOCAL: "This side had no connection to give; the host was not asked.",
}


def outcome_of(error: BaseException | None, exchange: Exchange) -> tuple[Failure | None, str]:
    """Return why the exchange failed, None if it did not, and a sentence about it."""
    if exchange.is_refused:
        return Failure.STATUS, f"The answer was {exchange.status}, and not from 200 to 299."
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
        # aiohttp closes at nonsense in a body, so who closed tells; under TLS not always.
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
