"""A simulated payment gateway: slow, sometimes out of reach, and without some currencies."""

from __future__ import annotations

import time
import zlib
from typing import Final

LATENCY_SECONDS: Final = 0.03
CURRENCIES: Final = frozenset({"CHF", "EUR", "GBP", "JPY", "PLN", "RON", "SEK", "USD"})


class GatewayTimeout(Exception):
    """No answer in time; another try may succeed."""


class GatewayRefusal(Exception):
    """An answer that no other try will change."""


def void_payment(order_id: str, currency: str, attempt: int) -> None:
    """Make the customer's payment link invalid; doing it twice changes nothing.

    One order in 40 times out at the first attempt, one in 1,000 at every attempt; which ones
    follows from their ids, so that every run meets the same.
    """
    time.sleep(LATENCY_SECONDS)
    if currency not in CURRENCIES:
        raise GatewayRefusal(f"the gateway holds no account in {currency}")
    if is_unreachable_for(order_id, attempt):
        raise GatewayTimeout(f"no answer about {order_id} within {LATENCY_SECONDS * 1000:.0f} ms")


def is_unreachable_for(order_id: str, attempt: int) -> bool:
    """Return whether this attempt will time out."""
    fate = zlib.crc32(order_id.encode()) % 1000
    return fate == 0 or (attempt == 1 and fate % 40 == 0)
