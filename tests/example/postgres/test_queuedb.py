"""manage.py queuedb starts and stops the server of the settings."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from example_project.postgres import EmbeddedPostgres
from tests.example.postgres.support import ask

pytestmark = pytest.mark.slow


def queuedb(action: str) -> str:
    output = io.StringIO()
    call_command("queuedb", action, stdout=output)
    return output.getvalue()


def test_queuedb_starts_and_stops(server, settings):
    settings.EMBEDDED_POSTGRES = server
    assert ":***@127.0.0.1:" in queuedb("start")
    assert ask(server.url, "SELECT 1") == 1
    assert queuedb("stop") == "stopped\n"
    assert queuedb("stop") == "not running\n"


def test_queuedb_reports_a_failure_as_a_command_error(server, settings):
    broken = EmbeddedPostgres(server.home.parent, {"no_such_parameter": 1}, durable=False)
    settings.EMBEDDED_POSTGRES = broken
    with pytest.raises(CommandError, match="no_such_parameter"):
        queuedb("start")


def test_queuedb_leaves_an_external_server_alone(settings):
    settings.EMBEDDED_POSTGRES = None
    assert "external server: nothing to start" in queuedb("start")
