"""``manage.py queueendpoint``: the endpoints of callbacks, their secrets and switches."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.exceptions import needing
from delayed_queue.http.models import Endpoint
from delayed_queue.management.arguments import FORMAT, add_all, add_database
from delayed_queue.management.base import QueueCommand


class Command(QueueCommand):
    help = gettext_noop("Manage the endpoints of callbacks: their secrets, limits and switches.")

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        add_all(actions.add_parser("list", help=_("show all endpoints")), FORMAT)
        for name, text in (
            ("add", _("register a url prefix, and print its secret")),
            ("rotate", _("print a new secret; the old one stays valid for 24 hours")),
            ("enable", _("enable an endpoint")),
            ("disable", _("disable an endpoint; its messages wait")),
        ):
            action = actions.add_parser(name, help=text)
            action.add_argument("prefix", help=_("such as https://example.com/hooks"))
            if name == "add":
                action.add_argument("--rate", type=float, help=_("callbacks per second"))
                action.add_argument("--burst", type=int, default=1, help=_("callbacks at once"))
                action.add_argument("--concurrency", type=int, help=_("callbacks at the same time"))
        add_database(parser, actions)

    def handle(self, **options: Any) -> None:
        with needing("http", "queueendpoint"):
            from delayed_queue.http.callbacks import operating
        using, prefix = options["database"], options.get("prefix", "")
        match options["action"]:
            case "list":
                endpoints = Endpoint.objects.using(using).order_by("prefix")
                self.write(list(map(_row, endpoints)), options["format"])
            case "add":
                secret = operating.register_endpoint(
                    prefix, per_second=options["rate"], burst=options["burst"],
                    concurrency=options["concurrency"], using=using,
                )  # fmt: skip
                self._show(operating.endpoint_of(prefix, using=using), secret)
            case "rotate":
                endpoint = operating.endpoint_of(prefix, using=using)
                self._show(endpoint, operating.rotate_secret(endpoint, using=using))
            case "enable":
                endpoint = operating.endpoint_of(prefix, using=using)
                operating.enable_endpoint(endpoint, using=using)
                self.stdout.write(_("Enabled. Workers send again within seconds."))
                self.stdout.write(_("Deferred messages follow within five minutes."))
            case "disable":
                endpoint = operating.endpoint_of(prefix, using=using)
                operating.disable_endpoint(endpoint, using=using)
                self.stdout.write(_("Disabled. Its messages wait."))

    def _show(self, endpoint: Endpoint, secret: str) -> None:
        self.stdout.write(f"{endpoint.prefix}\n{secret}")
        self.stderr.write(_("The secret is shown only now; it is stored encrypted."))


def _row(endpoint: Endpoint) -> dict[str, Any]:
    is_disabled = endpoint.disabled_at is not None
    state = f"disabled: {endpoint.disabled_reason}" if is_disabled else "enabled"
    rate = "any rate" if endpoint.per_second is None else f"{endpoint.per_second:g}/s"
    number = "any number" if endpoint.concurrency is None else endpoint.concurrency
    limits = f"{rate}, {number} at a time"
    return {"id": endpoint.id, "prefix": endpoint.prefix, "state": state, "limits": limits}
