"""``manage.py queuetoken``: create, list and revoke tokens of the HTTP API."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.db.clock import read_clock
from delayed_queue.durations import LONGEST
from delayed_queue.http.models import ApiToken
from delayed_queue.http.tokens import VERBS, create_token, list_tokens, revoke_token
from delayed_queue.management.arguments import FORMAT, add_all, add_database, count, duration
from delayed_queue.management.base import QueueCommand


class Command(QueueCommand):
    help = gettext_noop("Create, list and revoke tokens of the HTTP API.")

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        _add_create(actions.add_parser("create", help=_("create a token and print it once")))
        listing = actions.add_parser("list", help=_("list the tokens, without their secrets"))
        add_all(listing, FORMAT)
        revoke = actions.add_parser("revoke", help=_("disable a token for good"))
        revoke.add_argument("name")
        add_database(parser, actions)

    def handle(self, **options: Any) -> None:
        getattr(self, f"_{options['action']}")(options, options["database"])

    def _create(self, options: dict[str, Any], using: str) -> None:
        valid_for = options["valid_for"]
        expires_at = read_clock(using) + valid_for if valid_for else None
        token = create_token(
            options["name"], verbs=options["verb"], topics=options["topic"],
            expires_at=expires_at, rate=options["rate"], burst=options["burst"], using=using,
        )  # fmt: skip
        self.stderr.write(_("Store the token now; it is not shown again."))
        self.stdout.write(token)

    def _list(self, options: dict[str, Any], using: str) -> None:
        now = read_clock(using)
        self.write([_row(each, now) for each in list_tokens(using=using)], options["format"])

    def _revoke(self, options: dict[str, Any], using: str) -> None:
        if not revoke_token(options["name"], using=using):
            raise CommandError(_("There is no active token named %r.") % options["name"])
        self.stdout.write(_("Revoked. Server processes refuse it within seconds."))


def _add_create(parser: ArgumentParser) -> None:
    parser.add_argument("name", help=_("the program or person that uses it"))
    parser.add_argument(
        "--verb", action="append", choices=VERBS, required=True,
        help=_("a verb that it allows; repeat for several"),
    )  # fmt: skip
    parser.add_argument(
        "--topic", action="append", required=True, metavar="PATTERN",
        help=_(
            "a topic, or a prefix with a star; repeat for several ('*': all topics in "
            "the setting TOPICS)"),
    )  # fmt: skip
    until = _("time until it expires, for example 90d (default: valid until revoked)")
    add_all(parser, duration("--valid-for", until, timedelta(seconds=1), LONGEST))
    parser.add_argument("--rate", type=float, help=_("requests per second"))
    parser.add_argument("--burst", type=count(1, 1_000_000), help=_("requests at once"))


def _row(token: ApiToken, now: datetime) -> dict[str, Any]:
    return {
        "name": token.name, "begins": f"{token.prefix}…", "state": _state(token, now),
        "may": ",".join(token.verbs), "topics": ",".join(token.topics),
        "last used": token.last_used_at,
    }  # fmt: skip


def _state(token: ApiToken, now: datetime) -> str:
    if token.disabled_at is not None:
        return "revoked"
    is_expired = token.expires_at is not None and token.expires_at <= now
    return "expired" if is_expired else "in force"
