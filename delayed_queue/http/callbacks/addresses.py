"""Tell public internet addresses from others, by a table of our own.

Not ``ipaddress.is_global``: Python 3.11 calls multicast, NAT64, 6to4 and others global, and the
answer changes with the version of Python.
"""

from __future__ import annotations

from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(ip_network(each) for each in text.split())


# IANA's special-purpose registry, and the rest of what is no host of the internet.
NOT_PUBLIC_V4: Final = _networks(
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 "
    "198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 "
    # Azure's host, which hands out credentials; the address looks public.
    "168.63.129.16/32"
)
# All that was ever given to hosts. What carries a v4 address inside lies outside of it (mapped,
# compatible, NAT64), or in the table below (6to4, Teredo).
UNICAST_V6: Final = ip_network("2000::/3")
NOT_PUBLIC_V6: Final = _networks(
    "2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3ffe::/16 3fff::/20"
)
# What an allowed name may lead to. Link-local is not in it: it has the metadata of clouds.
PRIVATE: Final = _networks(
    "10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.168.0.0/16 ::1/128 fc00::/7"
)
METADATA: Final = frozenset(map(ip_address, ("100.100.100.200", "fd00:ec2::254", "fd20:ce::254")))


def is_public(address: Address) -> bool:
    """Return whether the address is one that hosts of the internet have."""
    if isinstance(address, IPv4Address):
        return not is_in(address, NOT_PUBLIC_V4)
    return address in UNICAST_V6 and not is_in(address, NOT_PUBLIC_V6)


def is_private(address: Address) -> bool:
    """Return whether the address is of a private network, and no service of a cloud."""
    return address not in METADATA and is_in(address, PRIVATE)


def is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in each for each in networks)
