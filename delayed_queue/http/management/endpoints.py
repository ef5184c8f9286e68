"""What ``manage.py queueendpoint`` does; apart from it, since this needs the extra [http]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.core.management.base import BaseCommand

from delayed_queue.http.callbacks.endpoints import (
    disable_endpoint,
    enable_endpoint,
    endpoint_of,
    prefix_of,
    register_endpoint,
    rotate_secret,
)
from delayed_queue.http.callbacks.recalling import recall_endpoint
from delayed_queue.http.models import Endpoint

Options = dict[str, Any]


def _list(command: BaseCommand, options: Options) -> None:
    for each in Endpoint.objects.using(options["database"]).order_by("prefix"):
        is_disabled = each.disabled_at is not None
        state = f"disabled: {each.disabled_reason}" if is_disabled else "enabled"
        command.stdout.write(f"{each.id}\t{each.prefix}\t{state}\t{_limits(each)}")


def _add(command: BaseCommand, options: Options) -> None:
    secret = register_endpoint(
        options["prefix"],
        per_second=options["rate"],
        burst=options["burst"],
        concurrency=options["concurrency"],
        using=options["database"],
    )
    _show(command, options["prefix"], secret)


def _rotate(command: BaseCommand, options: Options) -> None:
    secret = rotate_secret(_chosen(options), using=options["database"])
    _show(command, options["prefix"], secret)


def _enable(command: BaseCommand, options: Options) -> None:
    chosen = _chosen(options)
    enable_endpoint(chosen, using=options["database"])
    recalled = recall_endpoint(chosen, using=options["database"])
    command.stdout.write("Enabled. Workers know within seconds.")
    command.stdout.write(f"Messages that were deferred and come from now on: {recalled}.")


def _disable(command: BaseCommand, options: Options) -> None:
    disable_endpoint(_chosen(options), using=options["database"])
    command.stdout.write("Disabled. Its messages wait.")


ACTIONS: Final[dict[str, Callable[[BaseCommand, Options], None]]] = {
    "list": _list, "add": _add, "rotate": _rotate, "enable": _enable, "disable": _disable,
}  # fmt: skip


def _chosen(options: Options) -> Endpoint:
    return endpoint_of(options["prefix"], using=options["database"])


def _show(command: BaseCommand, url: str, secret: str) -> None:
    _, prefix = prefix_of(url)
    command.stdout.write(f"{prefix}\n{secret}")
    command.stderr.write("The secret is shown this once; what is stored is sealed.")


def _limits(endpoint: Endpoint) -> str:
    rate = f"{endpoint.per_second:g}/s" if endpoint.per_second is not None else "any rate"
    many = endpoint.concurrency if endpoint.concurrency is not None else "any number"
    return f"{rate}, {many} at a time"
