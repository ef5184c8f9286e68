"""``manage.py queueendpoint``: the endpoints of callbacks, their secrets and switches."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS
from django.db.models import F, QuerySet
from django.utils import timezone

from delayed_queue.callbacks.endpoints import prefix_of
from delayed_queue.callbacks.secrets import new_secret, seal
from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.models import Endpoint
from delayed_queue.rates import SharedRate


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
        using, rate = options["database"], options["rate"]
        if rate is not None:
            SharedRate("endpoint", rate, options["burst"])
        if options["concurrency"] is not None and options["concurrency"] < 1:
            raise CommandError("--concurrency must be 1 or more.")
        origin, prefix = prefix_of(options["prefix"])
        secret = new_secret()
        if not Endpoint.objects.add_once(origin, prefix, seal(secret), using=using):
            raise CommandError(f"{prefix} is registered already; rotate shows a new secret.")
        Endpoint.objects.using(using).filter(origin=origin, prefix=prefix).update(
            per_second=rate, burst=options["burst"], concurrency=options["concurrency"]
        )
        self._show(prefix, secret)

    def _rotate(self, options: dict[str, Any]) -> None:
        secret = new_secret()
        found = self._chosen(options)
        found.update(
            previous_secret=F("secret"), secret=seal(secret), rotated_at=timezone.now()
        )  # fmt: skip
        self._show(options["prefix"], secret)

    def _enable(self, options: dict[str, Any]) -> None:
        self._chosen(options).update(disabled_at=None, disabled_reason="")
        self.stdout.write("Enabled. Workers know within seconds; messages that were put off come")
        self.stdout.write("within a quarter of an hour.")

    def _disable(self, options: dict[str, Any]) -> None:
        endpoint = self._chosen(options).get()
        Endpoint.objects.disable(endpoint.id, "By an operator.", using=options["database"])
        self.stdout.write("Disabled. Its messages wait.")

    def _chosen(self, options: dict[str, Any]) -> QuerySet[Endpoint]:
        origin, prefix = prefix_of(options["prefix"])
        found = Endpoint.objects.using(options["database"]).filter(origin=origin, prefix=prefix)
        if not found.exists():
            raise CommandError(f"{prefix} is not registered.")
        return found

    def _show(self, prefix: str, secret: str) -> None:
        self.stdout.write(f"{prefix}\n{secret}")
        self.stderr.write("The secret is shown this once; what is stored is sealed.")


def _limits(endpoint: Endpoint) -> str:
    rate = f"{endpoint.per_second:g}/s" if endpoint.per_second is not None else "any rate"
    many = endpoint.concurrency if endpoint.concurrency is not None else "any number"
    return f"{rate}, {many} at a time"
