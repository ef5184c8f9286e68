"""Operations on endpoints: register, rotate, disable and enable them."""

from __future__ import annotations

from functools import partial

from django.db import DEFAULT_DB_ALIAS
from django.db.models import F

from delayed_queue.db.clock import read_clock
from delayed_queue.db.resilience import never, repeat
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.callbacks.calls import new_secret
from delayed_queue.http.callbacks.endpoints import prefix_of
from delayed_queue.http.callbacks.secrets import seal
from delayed_queue.http.models import Endpoint
from delayed_queue.http.rates import SharedRate

BY_OPERATOR = "By an operator."


def register_endpoint(
    url: str,
    *,
    per_second: float | None = None,
    burst: int = 1,
    concurrency: int | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> str:
    """Register the url and all below it; return the secret, which is not shown again.

    Raises UrlRefused for a url that callbacks must not go to, InvalidConfiguration for invalid
    limits and for a prefix that is registered already.
    """
    _check_limits(per_second, burst, concurrency)
    origin, prefix = prefix_of(url)
    secret = new_secret()
    sealed = seal(secret)
    mine = Endpoint.objects.using(using).filter(origin=origin, prefix=prefix, secret=sealed)

    made = {
        "secret": sealed, "created_at": read_clock(using), "per_second": per_second,
        "burst": burst, "concurrency": concurrency,
    }  # fmt: skip

    def register() -> bool:
        endpoints = Endpoint.objects.using(using)
        return endpoints.get_or_create(made, origin=origin, prefix=prefix)[1]

    if not repeat(using, register, truth=lambda _: mine.exists() or register()):
        raise InvalidConfiguration(f"{prefix} is already registered. To see a secret, rotate it.")
    return secret


def endpoint_of(url: str, *, using: str = DEFAULT_DB_ALIAS) -> Endpoint:
    """Return the endpoint with exactly this prefix, or raise InvalidConfiguration."""
    origin, prefix = prefix_of(url)
    found = repeat(using, Endpoint.objects.using(using).filter(origin=origin, prefix=prefix).first)
    if found is None:
        raise InvalidConfiguration(f"{prefix} is not registered.")
    return found


def rotate_secret(endpoint: Endpoint, *, using: str = DEFAULT_DB_ALIAS) -> str:
    """Return a new secret, not shown again; callbacks carry the old one's signature for 24 h."""
    secret = new_secret()
    sealed = seal(secret)
    rows = Endpoint.objects.using(using).filter(pk=endpoint.pk)
    # A repetition must not make the new secret the previous one.
    rotate = partial(
        rows.exclude(secret=sealed).update,
        previous_secret=F("secret"), secret=sealed, rotated_at=read_clock(using),
    )  # fmt: skip
    repeat(using, rotate, doubt=never)
    return secret


def disable_endpoint(
    endpoint: Endpoint, reason: str = BY_OPERATOR, *, using: str = DEFAULT_DB_ALIAS
) -> bool:
    """Stop callbacks to it; its jobs wait. Return False if it was disabled already."""
    disable = partial(Endpoint.objects.disable, endpoint.pk, reason, using=using)
    return repeat(using, disable, doubt=never)


def enable_endpoint(endpoint: Endpoint, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Allow callbacks to it again; return False if it was not disabled.

    Workers see it within seconds. Deferred jobs follow within five minutes.
    """
    disabled = Endpoint.objects.using(using).filter(pk=endpoint.pk, disabled_at__isnull=False)
    enable = partial(disabled.update, disabled_at=None, disabled_reason="")
    return repeat(using, enable, doubt=never) > 0


def _check_limits(per_second: float | None, burst: int, concurrency: int | None) -> None:
    if per_second is not None:
        SharedRate("endpoint", per_second, burst)
    if concurrency is not None and concurrency < 1:
        raise InvalidConfiguration("The concurrency of an endpoint is 1 or more.")
