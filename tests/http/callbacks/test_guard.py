"""The guard reads urls as aiohttp does, and rejects each non-public address (J11)."""

from __future__ import annotations

import string
import subprocess
import sys
from ipaddress import IPv6Address, ip_address, ip_network

import pytest
from django.conf import LazySettings
from hypothesis import example, given
from hypothesis import settings as running
from hypothesis import strategies as st
from yarl import URL

from delayed_queue.exceptions import UrlRefused
from delayed_queue.http.callbacks.guard import (
    Policy,
    check_addresses,
    check_url,
    is_public,
    read_url,
)
from delayed_queue.http.conf import CallbackSettings
from tests.http.callbacks.urls import EVERY_ADDRESS, EVERY_REFUSED, PUBLIC, literal

CLOSED = Policy()
V4 = st.ip_addresses(v=4)
V6 = st.ip_addresses(v=6)


def policy(**keys: list[str] | list[int]) -> Policy:
    return Policy.of(CallbackSettings(**keys))  # type: ignore[arg-type]


@pytest.mark.parametrize("url", PUBLIC)
def test_public_urls(url: str) -> None:
    check_url(url, CLOSED)


@pytest.mark.parametrize("url", EVERY_REFUSED)
def test_refused_urls(url: str) -> None:
    with pytest.raises(UrlRefused) as caught:
        check_url(url, CLOSED)
    sentence = str(caught.value)
    assert sentence[0].isupper()
    assert sentence.endswith(".")


@pytest.mark.parametrize("url", [None, 5, b"http://example.com/", ["http://example.com/"]])
def test_what_is_no_text(url: object) -> None:
    with pytest.raises(UrlRefused):
        check_url(url, CLOSED)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", EVERY_ADDRESS)
def test_refused_addresses(address: str) -> None:
    with pytest.raises(UrlRefused, match="not public"):
        check_addresses("example.com", [address], CLOSED)


@pytest.mark.parametrize("address", ["fe80::1%eth0", "2606:2800::1%1"])
def test_answers_with_a_zone_are_refused(address: str) -> None:
    with pytest.raises(UrlRefused):
        check_addresses("example.com", [address], CLOSED)


@pytest.mark.parametrize("address", EVERY_ADDRESS)
def test_one_bad_answer_refuses_the_name(address: str) -> None:
    for answers in (["8.8.8.8", address], [address, "8.8.8.8"], ["2606:2800::1", address]):
        with pytest.raises(UrlRefused, match=r"^The host example\.com leads to"):
            check_addresses("example.com", answers, CLOSED)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:2800::1", "2a00:1450::1", "192.0.1.1"]
)
def test_public_addresses(address: str) -> None:
    check_addresses("example.com", [address], CLOSED)


@given(V4)
@running(deadline=None)
def test_a_public_v4_address_is_global_to_python_too(address: object) -> None:
    given_address = ip_address(str(address))
    assert not is_public(given_address) or (
        given_address.is_global and not given_address.is_multicast
    )


@given(V6)
@running(deadline=None)
def test_a_public_v6_address_is_global_unicast(address: object) -> None:
    given_address = ip_address(str(address))
    assert is_public(given_address) <= (given_address in ip_network("2000::/3"))


@given(V4)
@running(deadline=None)
def test_no_address_within_an_address_is_public(address: object) -> None:
    number = int(ip_address(str(address)))
    for prefix in (0, 0xFFFF << 32, 0xFFFF << 48, 0x64FF9B << 96):
        assert not is_public(IPv6Address(prefix + number))
    assert not is_public(IPv6Address((0x2002 << 112) + (number << 80)))
    assert not is_public(IPv6Address((0x20010000 << 96) + number))


def test_the_guard_and_the_signature_need_no_aiohttp() -> None:
    """An API can refuse urls without the client; signing needs no Django either."""
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(name=name)
REFUSED = {"aiohttp", "aiodns", "cryptography"}
sys.meta_path.insert(0, Refuse())
import delayed_queue.http.callbacks.guard
REFUSED |= {"django", "asgiref"}
for name in [each for each in sys.modules if each.partition(".")[0] in {"django", "delayed_queue"}]:
    del sys.modules[name]
import delayed_queue.http.callbacks.calls
print("imported")
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
    assert done.stdout == b"imported\n", done.stderr


class TestAllowing:
    def test_ports(self) -> None:
        for port in (8080, 80, 443):
            check_url(f"http://example.com:{port}/", policy(ALLOWED_PORTS=[8080]))
        with pytest.raises(UrlRefused, match="port 8081"):
            check_url("http://example.com:8081/", policy(ALLOWED_PORTS=[8080]))

    def test_networks(self) -> None:
        allowing = policy(ALLOWED_NETWORKS=["10.1.0.0/16", "fd12::/16"])
        for address in ("10.1.2.3", "fd12::5"):
            check_url(literal(address), allowing)
            check_addresses("example.com", [address, "8.8.8.8"], allowing)
        for address in ("10.2.0.1", "::ffff:10.1.2.3", "fd13::1"):
            with pytest.raises(UrlRefused):
                check_url(literal(address), allowing)

    @pytest.mark.parametrize(
        "host", ["erp.internal", "ERP.Internal", "a.hooks.corp", "a.b.hooks.corp", "queue"]
    )
    def test_names_may_lead_to_private_addresses(self, host: str) -> None:
        allowing = policy(ALLOWED_HOSTS=["ERP.internal", "*.hooks.corp", "queue"])
        check_url(f"http://{host}/", allowing)
        for address in ("10.0.0.1", "127.0.0.1", "::1", "fd00::1", "8.8.8.8"):
            check_addresses(host.lower(), [address], allowing)

    @pytest.mark.parametrize(
        "address",
        [
            "169.254.169.254",
            "fd00:ec2::254",
            "fe80::1",
            "100.100.100.200",
            "0.0.0.0",  # noqa: S104 # refused
            "224.0.0.1",
            "::ffff:10.0.0.1",
            "192.0.2.1",
            "168.63.129.16",
        ],
    )
    def test_no_name_leads_to_metadata(self, address: str) -> None:
        with pytest.raises(UrlRefused):
            check_addresses("erp.internal", [address], policy(ALLOWED_HOSTS=["erp.internal"]))

    @pytest.mark.parametrize(
        "host",
        [
            "hooks.corp",
            "xhooks.corp",
            "erp.internal.evil.com",
            "evil-erp.internal",
            "a.erp.internal",
        ],
    )
    def test_other_names_may_not(self, host: str) -> None:
        allowing = policy(ALLOWED_HOSTS=["erp.internal", "*.hooks.corp"])
        with pytest.raises(UrlRefused):
            check_addresses(host, ["10.0.0.1"], allowing)

    def test_an_address_may_be_allowed_as_a_host(self) -> None:
        check_url("http://127.0.0.1/", policy(ALLOWED_HOSTS=["127.0.0.1"]))

    def test_the_settings_are_the_default(self, settings: LazySettings) -> None:
        with pytest.raises(UrlRefused):
            check_url("http://10.1.2.3:8080/")
        settings.DELAYED_QUEUE = {
            "CALLBACKS": {"ALLOWED_NETWORKS": ["10.1.0.0/16"], "ALLOWED_PORTS": [8080]}
        }
        check_url("http://10.1.2.3:8080/")


# Pieces of ambiguous urls, in any order.
PIECES = st.sampled_from([
    "http://", "https://", "HTTP:", "//", "/", "\\", "@", ":", "#", "?", "%", "[", "]", ".", "..",
    "%40", "127.0.0.1", "0x7f", "1", "::1", "example.com", "localhost", "user", "80", "443",
    "\u3002", "\uff11", "\u00df", "xn--", "\u200d", "\u0301", "\t", "\n", " ", "\u202e", "&", ";",
    "\U0001f600", "%2e", "-", "_",
])  # fmt: skip
HOSTS = st.text(
    string.ascii_letters + string.digits + ".-:[]%@\u3002\uff0e\uff11\u00df\u0130\u2460"
)


@given(
    st.one_of(
        st.text(),
        st.lists(PIECES, max_size=8).map("".join),
        st.lists(PIECES, max_size=6).map("".join).map("http://{}".format),
        HOSTS.map("http://{}/".format),
    )
)
@example("http://\u24db\u24de\u24d2\u24d0\u24db.example.com/")
@example("http://fa\u00df.example.com/")
@running(deadline=None)
def test_what_is_accepted_is_what_aiohttp_would_dial(url: str) -> None:
    try:
        target = read_url(url, CLOSED)
    except UrlRefused:
        return
    dialled = URL(url)
    assert (target.host, target.port) == (dialled.raw_host, dialled.port)
    assert (dialled.user, dialled.password, dialled.fragment) == (None, None, "")
    assert dialled.scheme in {"http", "https"}
    assert dialled.port in {80, 443}
    # Each number that inet_aton or getaddrinfo accepts is an address to us, too.
    last = target.host.rpartition(".")[2]
    assert target.address is not None or not (last.isdigit() or last.startswith("0x"))
    assert target.host.isascii()
    assert target.address is None or is_public(target.address)
