"""Start, stop or show the database server of the project."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connection

from example_project.postgres import (
    EmbeddedPostgres,
    LauncherError,
    ServerStatus,
    database_url,
)

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

NOT_RUNNING = 3


class Command(BaseCommand):
    """A shell around `example_project.postgres`."""

    help = "Start, stop or show the embedded PostgreSQL server."
    requires_system_checks: list[str] = []  # they may want the database

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare one action and the format of its output."""
        parser.add_argument("action", choices=["start", "stop", "status"])
        parser.add_argument("--format", choices=["text", "json"], default="text")
        parser.add_argument("--show-password", action="store_true")

    def handle(self, *, action: str, **options: Any) -> None:
        """Run the action on the server of the settings."""
        server: EmbeddedPostgres | None = settings.EMBEDDED_POSTGRES
        try:
            if action == "status":
                self._show(server.status() if server else _external_status(), **options)
            elif server is None:
                self.stdout.write(f"DATABASE_URL names an external server: nothing to {action}.")
            elif action == "start":
                self.stdout.write(_redacted(server.start(), **options))
            else:
                self.stdout.write("stopped" if server.stop() else "not running")
        except LauncherError as error:
            raise CommandError(str(error)) from error

    def _show(self, status: ServerStatus, **options: Any) -> None:
        answer = dataclasses.asdict(status)
        answer["url"] = status.url and _redacted(status.url, **options)
        if options["format"] == "json":
            self.stdout.write(json.dumps(answer))
        else:
            for name, value in answer.items():
                self.stdout.write(f"{name}: {'-' if value is None else value}")
        if not status.running:
            sys.exit(NOT_RUNNING)


def _external_status() -> ServerStatus:
    """Return the state of an external server: running if it accepts connections."""
    found = connection.settings_dict
    url = database_url(
        user=found["USER"],
        password=found["PASSWORD"],
        host=found["HOST"],
        port=found["PORT"] or 5432,
        name=found["NAME"],
    )
    try:
        connection.ensure_connection()
    except Error:
        return ServerStatus(running=False, url=url)
    version = str(connection.connection.info.parameter_status("server_version"))
    return ServerStatus(running=True, url=url, version=version)


def _redacted(url: str, *, show_password: bool, **_options: Any) -> str:
    password = urlsplit(url).password
    if show_password or password is None:
        return url
    return url.replace(f":{password}@", ":***@", 1)
