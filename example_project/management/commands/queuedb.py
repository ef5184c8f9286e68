"""Start or stop the database server of the project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from example_project.postgres import EmbeddedPostgres, LauncherError

if TYPE_CHECKING:
    from django.core.management.base import CommandParser


class Command(BaseCommand):
    """A shell around `example_project.postgres`."""

    help = "Start or stop the embedded PostgreSQL server."
    requires_system_checks: list[str] = []  # they may want the database

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["start", "stop"])

    def handle(self, *, action: str, **options: Any) -> None:
        server: EmbeddedPostgres | None = settings.EMBEDDED_POSTGRES
        try:
            if server is None:
                self.stdout.write(f"DATABASE_URL names an external server: nothing to {action}.")
            elif action == "start":
                self.stdout.write(_redacted(server.start()))
            else:
                self.stdout.write("stopped" if server.stop() else "not running")
        except LauncherError as error:
            raise CommandError(str(error)) from error


def _redacted(url: str) -> str:
    return url.replace(f":{urlsplit(url).password}@", ":***@", 1)
