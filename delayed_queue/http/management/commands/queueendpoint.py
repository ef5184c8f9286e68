"""``manage.py queueendpoint``: the endpoints of callbacks, their secrets and switches."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.exceptions import needing
from delayed_queue.management.arguments import add_database, add_format
from delayed_queue.management.base import QueueCommand


class Command(QueueCommand):
    help = gettext_noop("Manage the endpoints of callbacks: their secrets, limits and switches.")

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        add_format(actions.add_parser("list", help=_("show all endpoints")))
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
            from delayed_queue.http.callbacks.operating import ACTIONS
        ACTIONS[options["action"]](self, options)
