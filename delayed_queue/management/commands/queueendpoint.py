"""``manage.py queueendpoint``: the endpoints of callbacks, their secrets and switches."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS

from delayed_queue.callbacks.endpoints import prefix_of
from delayed_queue.callbacks.recalling import recall_endpoint
from delayed_queue.callbacks.registering import (
    disable_endpoint,
    enable_endpoint,
    endpoint_of,
    register_endpoint,
    rotate_secret,
)
from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.models import Endpoint


class Command(BaseCommand):
    help = "Manage the endpoints of callbacks: their secrets, limits and switches."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="database alias")
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="show all endpoints")
        for name, text in (
            ("add", "register a url prefix, and print its secret"),
            ("rotate", "print a new secret; the old one stays valid for 24 h"),
            ("enable", "send to it again"),
            ("disable", "send nothing more; its messages wait"),
        ):
            action = actions.add_parser(name, help=text)
            action.add_argument("prefix", help="such as https://example.com/hooks")
            if name == "add":
                action.add_argument("--rate", type=float, help="callbacks per second")
                action.add_argument("--burst", type=int, default=1, help="of them at once")
                action.add_argument("--concurrency", type=int, help="on the wire at a time")

    def handle(self, **options: Any) -> None:
        try:
            getattr(self, f"_{options['action']}")(options)
        except DelayedQueueError as error:
            raise CommandError(str(error)) from error

    def _list(self, options: dict[str, Any]) -> None:
        for each in Endpoint.objects.using(options["database"]).order_by("prefix"):
            is_disabled = each.disabled_at is not None
            state = f"disabled: {each.disabled_reason}" if is_disabled else "enabled"
            self.stdout.write(f"{each.id}\t{each.prefix}\t{state}\t{_limits(each)}")

    def _add(self, options: dict[str, Any]) -> None:
        secret = register_endpoint(
            options["prefix"],
            per_second=options["rate"],
            burst=options["burst"],
            concurrency=options["concurrency"],
            using=options["database"],
        )
        self._show(options["prefix"], secret)

    def _rotate(self, options: dict[str, Any]) -> None:
        secret = rotate_secret(self._chosen(options), using=options["database"])
        self._show(options["prefix"], secret)

    def _enable(self, options: dict[str, Any]) -> None:
        chosen = self._chosen(options)
        enable_endpoint(chosen, using=options["database"])
        recalled = recall_endpoint(chosen, using=options["database"])
        self.stdout.write("Enabled. Workers know within seconds.")
        self.stdout.write(f"Messages that were put off and come from now on: {recalled}.")

    def _disable(self, options: dict[str, Any]) -> None:
        disable_endpoint(self._chosen(options), using=options["database"])
        self.stdout.write("Disabled. Its messages wait.")

    def _chosen(self, options: dict[str, Any]) -> Endpoint:
        return endpoint_of(options["prefix"], using=options["database"])

    def _show(self, url: str, secret: str) -> None:
        _, prefix = prefix_of(url)
        self.stdout.write(f"{prefix}\n{secret}")
        self.stderr.write("The secret is shown this once; what is stored is sealed.")


def _limits(endpoint: Endpoint) -> str:
    rate = f"{endpoint.per_second:g}/s" if endpoint.per_second is not None else "any rate"
    many = endpoint.concurrency if endpoint.concurrency is not None else "any number"
    return f"{rate}, {many} at a time"
