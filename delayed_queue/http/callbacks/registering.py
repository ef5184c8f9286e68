"""Endpoints as operators manage them: registered, given new secrets, switched off and on."""

from __future__ import annotations

from django.db import DEFAULT_DB_ALIAS
from django.db.models import F
from django.utils import timezone

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.callbacks.endpoints import prefix_of
from delayed_queue.http.callbacks.secrets import new_secret, seal
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

    Raises UrlRefused for a url that callbacks must not go to, InvalidConfiguration for limits
    that are none and for a prefix that is registered already.
    """
    _check_limits(per_second, burst, concurrency)
    origin, prefix = prefix_of(url)
    secret = new_secret()
    if not Endpoint.objects.add_once(origin, prefix, seal(secret), using=using):
        raise InvalidConfiguration(
            f"{prefix} is registered already; rotating its secret shows a new one."
        )
    Endpoint.objects.using(using).filter(origin=origin, prefix=prefix).update(
        per_second=per_second, burst=burst, concurrency=concurrency
    )
    return secret


def endpoint_of(url: str, *, using: str = DEFAULT_DB_ALIAS) -> Endpoint:
    """Return the endpoint that is registered as just this prefix, or raise InvalidConfiguration."""
    origin, prefix = prefix_of(url)
    found = Endpoint.objects.using(using).filter(origin=origin, prefix=prefix).first()
    if found is None:
        raise InvalidConfiguration(f"{prefix} is not registered.")
    return found


def rotate_secret(endpoint: Endpoint, *, using: str = DEFAULT_DB_ALIAS) -> str:
    """Return a new secret, not shown again; callbacks carry the old one's signature for 24 h."""
    secret = new_secret()
    Endpoint.objects.using(using).filter(pk=endpoint.pk).update(
        previous_secret=F("secret"), secret=seal(secret), rotated_at=timezone.now()
    )
    return secret


def disable_endpoint(
    endpoint: Endpoint, reason: str = BY_OPERATOR, *, using: str = DEFAULT_DB_ALIAS
) -> bool:
    """Send nothing more to it, its jobs wait; False if that is so already."""
    return Endpoint.objects.disable(endpoint.pk, reason, using=using)


def enable_endpoint(endpoint: Endpoint, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Send to it again; False if it was not disabled.

    Workers know within seconds; jobs that were deferred come within a quarter of an hour, or from
    then on, if ``recalling.recall_endpoint`` is called when this has committed.
    """
    disabled = Endpoint.objects.using(using).filter(pk=endpoint.pk, disabled_at__isnull=False)
    return disabled.update(disabled_at=None, disabled_reason="") > 0


def _check_limits(per_second: float | None, burst: int, concurrency: int | None) -> None:
    if per_second is not None:
        SharedRate("endpoint", per_second, burst)
    if concurrency is not None and concurrency < 1:
        raise InvalidConfiguration("The concurrency of an endpoint is 1 or more.")
