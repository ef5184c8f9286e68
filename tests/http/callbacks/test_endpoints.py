"""Endpoints: their urls, and the command that manages them."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from delayed_queue.exceptions import UrlRefused
from delayed_queue.http.callbacks import secrets
from delayed_queue.http.callbacks.endpoints import Place, matching, place_of, prefix_of
from delayed_queue.http.models import Endpoint


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("https://a.com/hooks/x", "https://a.com/hooks"),
        ("https://a.com/hooks", "https://a.com/hooks"),
        ("https://a.com/hooks?x=1", "https://a.com/hooks"),
        ("https://a.com/hooksies", "https://a.com"),
        ("https://a.com/hooks/deep/x", "https://a.com/hooks/deep"),
        ("https://a.com/other", "https://a.com"),
        ("https://a.com", "https://a.com"),
        ("https://A.com:443/hooks/", "https://a.com/hooks"),
    ],
)
def test_the_longest_prefix_that_ends_where_a_part_of_the_path_does(url: str, prefix: str):
    known = ("https://a.com", "https://a.com/hooks", "https://a.com/hooks/deep")
    found = matching(place_of(url), [Endpoint(prefix=each) for each in known])
    assert found is not None
    assert found.prefix == prefix


def test_where_a_url_leads():
    assert place_of("https://a.com/x") == Place(
        "https://a.com", "/x", "a.com:443", "https://a.com/x"
    )
    assert place_of("http://a.com/x") == Place("http://a.com", "/x", "a.com:80", "http://a.com/x")
    assert prefix_of("https://a.com/x/") == ("https://a.com", "https://a.com/x")
    with pytest.raises(UrlRefused):
        place_of("https://10.0.0.1/")


def run(*arguments: Any) -> str:
    out = StringIO()
    call_command("queueendpoint", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


@pytest.mark.django_db
class TestCommand:
    def test_a_secret_is_shown_once_and_stored_sealed(self) -> None:
        shown = run("add", "https://a.com/hooks/", "--rate", "5", "--burst", "2",
                    "--concurrency", "3").split()  # fmt: skip
        endpoint = Endpoint.objects.get()
        assert shown == ["https://a.com/hooks", secrets.unseal(endpoint.secret)]
        assert shown[1] not in endpoint.secret
        assert (endpoint.per_second, endpoint.burst, endpoint.concurrency) == (5, 2, 3)
        listed = run("list")
        assert "https://a.com/hooks  enabled  5/s, 3 at a time" in listed
        assert shown[1] not in listed

    def test_rotating_keeps_the_old_secret_for_a_while(self) -> None:
        run("add", "https://a.com")
        old = Endpoint.objects.get().secret
        shown = run("rotate", "https://a.com").split()[1]
        endpoint = Endpoint.objects.get()
        assert secrets.unseal(endpoint.secret) == shown
        assert endpoint.previous_secret == old
        assert endpoint.rotated_at is not None

    def test_disabling_and_enabling(self) -> None:
        run("add", "https://a.com")
        run("disable", "https://a.com")
        assert "disabled: By an operator." in run("list")
        run("enable", "https://a.com")
        assert "enabled" in run("list")

    @pytest.mark.parametrize(
        "arguments",
        [
            ("rotate", "https://unknown.com"),
            ("add", "https://10.0.0.1"),
            ("add", "https://a.com", "--rate", "0"),
            ("add", "https://a.com", "--concurrency", "0"),
        ],
    )
    def test_what_cannot_be_is_refused(self, arguments: tuple[str, ...]) -> None:
        with pytest.raises(CommandError):
            run(*arguments)
        assert not Endpoint.objects.exists()

    def test_it_is_registered_once(self) -> None:
        run("add", "https://a.com")
        with pytest.raises(CommandError, match="already"):
            run("add", "https://a.com")
