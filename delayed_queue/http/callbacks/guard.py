"""The policy of callbacks' targets: the same for offered urls and for dialled addresses.

yarl reads a url's host, as aiohttp will; a host that the two might read differently is refused.
Path and query are called as they were given. Nothing here touches the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias
from urllib.parse import quote

from yarl import URL

from delayed_queue.exceptions import UrlRefused
from delayed_queue.http.conf import CallbackSettings, callback_settings

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(ip_network(each) for each in text.split())


# IANA's special-purpose registry, multicast, and reserved ranges.
NOT_PUBLIC_V4: Final = _networks(
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 "
    "198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 "
    # Azure's host, which hands out credentials; the address looks public.
    "168.63.129.16/32"
)
# All addresses ever assigned to hosts. Forms that contain a v4 address lie outside of it (mapped,
# compatible, NAT64), or in the table below (6to4, Teredo).
UNICAST_V6: Final = ip_network("2000::/3")
NOT_PUBLIC_V6: Final = _networks(
    "2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3ffe::/16 3fff::/20"
)
# Private networks that an allowed name may resolve to. Not link-local, where clouds serve
# metadata.
PRIVATE: Final = _networks(
    "10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.168.0.0/16 ::1/128 fc00::/7"
)
METADATA: Final = frozenset(map(ip_address, ("100.100.100.200", "fd00:ec2::254", "fd20:ce::254")))


def is_public(address: Address) -> bool:
    """Return whether the address is a public one."""
    if isinstance(address, IPv4Address):
        return not is_in(address, NOT_PUBLIC_V4)
    return address in UNICAST_V6 and not is_in(address, NOT_PUBLIC_V6)


def is_private(address: Address) -> bool:
    """Return whether the address is private, and not a metadata service."""
    return address not in METADATA and is_in(address, PRIVATE)


def is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in each for each in networks)


MAX_URL: Final = 2048
MAX_HOST: Final = 253
# Named in errors, so that an operator finds the setting that allows a url.
_SECTION: Final = "DELAYED_QUEUE['CALLBACKS']"
_NO_NAME: Final = "The host in the url is not a valid DNS name."
PORTS: Final = frozenset({80, 443})
# The authority of a url: no userinfo, no empty port, and ASCII digits only, because int() accepts
# those of other scripts.
_AUTHORITY: Final = re.compile(
    r"https?://(\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[^\[\]@:/?#%]+))(:[0-9]{1,5})?(?=[/?]|\Z)",
    re.IGNORECASE,
)
# Characters of path and query that a request line can contain: those of RFC 3986, and brackets.
_AS_GIVEN: Final = "%/?:@!$&'()*+,;=-._~[]"
_TARGET: Final = re.compile(r"[^:]*://[^/?#]*([^#]*).*", re.DOTALL)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# By the URL standard, a host whose last label is a number is a v4 address or invalid.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
# Names that no public server has (RFC 6761, 6762, 8375, 9476, and common private ones).
_LOCAL: Final = frozenset(
    {"alt", "arpa", "corp", "home", "internal", "intranet", "invalid", "lan", "local"}
    | {"localdomain", "localhost", "onion", "private", "test"}
)


@dataclass(frozen=True, slots=True)
class Policy:
    """The allowed targets of callbacks besides public addresses at the ports 80 and 443."""

    names: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    ports: frozenset[int] = PORTS

    @classmethod
    def of(cls, settings: CallbackSettings) -> Policy:
        hosts = [host.lower() for host in settings.ALLOWED_HOSTS]
        return cls(
            frozenset(host for host in hosts if not host.startswith("*.")),
            tuple(host[1:] for host in hosts if host.startswith("*.")),
            tuple(map(ip_network, settings.ALLOWED_NETWORKS)),
            PORTS.union(settings.ALLOWED_PORTS),
        )

    def trusts(self, host: str) -> bool:
        """Return whether the name may resolve to a private address."""
        return host in self.names or host.endswith(self.suffixes)

    def permits(self, host: str, address: Address) -> bool:
        """Return whether a callback to the name may dial the address."""
        return (
            is_public(address)
            or is_in(address, self.networks)
            or (is_private(address) and self.trusts(host))
        )


@dataclass(frozen=True, slots=True)
class Target:
    """An accepted url and the host, port and address to dial.

    ``url`` is called as it was given. Endpoints match ``parsed``, its normal form.
    """

    url: URL
    parsed: URL
    host: str
    port: int
    address: Address | None


def current_policy() -> Policy:
    return Policy.of(callback_settings())


def check_url(url: str, policy: Policy | None = None) -> None:
    """Raise UrlRefused for a forbidden target, without resolving its name.

    The addresses of the name are checked at every dial.
    """
    read_url(url, current_policy() if policy is None else policy)


def read_url(url: str, policy: Policy) -> Target:
    """Return the target of the url, or raise UrlRefused."""
    given = _checked_text(url)
    try:
        parsed, exact = URL(url), as_given(url)
        host, port = parsed.raw_host or "", parsed.port or 0
    except ValueError as error:
        raise UrlRefused("The url is malformed.") from error
    if port not in policy.ports:
        raise UrlRefused(
            f"The port {port} is not allowed. Allowed are 80, 443 and {_SECTION}['ALLOWED_PORTS']."
        )
    address = _checked_host(host, given)
    if address is None:
        _check_name(host, policy)
    elif not policy.permits(host, address):
        raise UrlRefused(
            f"The address in the url is not public, nor in {_SECTION}['ALLOWED_NETWORKS']."
        )
    return Target(exact, parsed, host, port, address)


def as_given(url: str) -> URL:
    """Return the URL whose path and query go out byte for byte.

    A signature covers them, and ``%2F`` differs from ``/``. Only characters that a request line
    cannot contain are escaped. Raises ValueError for an invalid url.
    """
    parsed = URL(url)
    target = quote(_TARGET.sub(r"\1", url), safe=_AS_GIVEN)
    # The query is passed within the path, because yarl drops the "?" of an empty one.
    path = target if target.startswith("/") else f"/{target}"
    return URL.build(
        scheme=parsed.scheme, authority=parsed.raw_authority, path=path, encoded=True
    )  # fmt: skip


def check_addresses(host: str, answers: Iterable[str], policy: Policy) -> None:
    """Refuse the name if any of its addresses is not permitted."""
    for answer in answers:
        # Zone ids belong to link-local addresses.
        if "%" in answer or not policy.permits(host, ip_address(answer)):
            raise UrlRefused(
                f"The host {host} leads to an address that is not public, nor allowed by "
                f"{_SECTION}['ALLOWED_HOSTS'] or ['ALLOWED_NETWORKS']."
            )


def _checked_text(url: str) -> str:
    """Return the host as written in the url."""
    if not isinstance(url, str) or len(url) > MAX_URL:
        raise UrlRefused(f"A url is a text of at most {MAX_URL} characters.")
    # Some url parsers silently drop these characters.
    if not url.isprintable() or any(sign in url for sign in " \\#"):
        raise UrlRefused("A url has no fragment, backslash, space or control character.")
    match = _AUTHORITY.match(url)
    if match is None:
        raise UrlRefused("A url is http:// or https:// and a host, without user and password.")
    if _BAD_ESCAPE.search(url):
        raise UrlRefused("An escape in a url is % and two hexadecimal digits; % itself is %25.")
    host = match["v6"] or match["name"]
    # Encoding a name of another script in ASCII takes quadratic time.
    if len(host) > MAX_HOST:
        raise UrlRefused(_NO_NAME)
    return host


def _checked_host(host: str, given: str) -> Address | None:
    """Return the host as an address, or None for a name."""
    if ":" in host:
        return _address(host, IPv6Address)
    if _NUMBER.fullmatch(host.rpartition(".")[2]) is None:
        return None
    address = _address(host, IPv4Address)
    if str(address) != given:
        raise UrlRefused("An address in a url is four decimal numbers, as in 192.0.2.1.")
    return address


def _address(host: str, cls: type[IPv4Address] | type[IPv6Address]) -> Address:
    try:
        return cls(host)
    except ValueError as error:
        raise UrlRefused("The address in the url is malformed.") from error


def _check_name(host: str, policy: Policy) -> None:
    labels = host.split(".")
    if len(host) > MAX_HOST or not all(map(_LABEL.fullmatch, labels)):
        raise UrlRefused(_NO_NAME)
    if (len(labels) == 1 or labels[-1] in _LOCAL) and not policy.trusts(host):
        raise UrlRefused(
            f"The host {host} is not a public name, nor one of {_SECTION}['ALLOWED_HOSTS']."
        )
