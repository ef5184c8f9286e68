"""``manage.py queuehealth``: its exit code is the answer, and it prints the reasons."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import BaseCommand, CommandError, call_command, load_command_class
from django.db import connection, connections
from django.db.migrations.recorder import MigrationRecorder

from delayed_queue.worker.process.health import HealthReport, write_health_file
from tests.support import documents
from tests.support.factories import DeadLetterFactory, MessageFactory, from_now

pytestmark = pytest.mark.django_db(transaction=True)

HEALTHY = HealthReport("w-1", True, ())


def run(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the output."""
    out = StringIO()
    try:
        call_command("queuehealth", *arguments, stdout=out)
    except SystemExit as stopped:
        return int(stopped.code or 0), out.getvalue()
    return 0, out.getvalue()


def reasons(*arguments: str) -> list[str]:
    code, output = run(*arguments, "--format", "json")
    answer = json.loads(output)
    assert (code, answer["healthy"]) == ((1, False) if answer["reasons"] else (0, True))
    found: list[str] = answer["reasons"]
    return found


class TestQueues:
    def test_without_limits_the_database_is_asked_and_no_more(self) -> None:
        MessageFactory.create(scheduled_at=from_now(days=-3))
        assert run() == (0, "healthy\n")

    def test_each_limit_that_is_passed_is_a_reason(self) -> None:
        MessageFactory.create(scheduled_at=from_now(minutes=-10))
        MessageFactory.create_batch(2)
        DeadLetterFactory.create_batch(2)
        code, output = run("--max-age", "60", "--max-due", "2", "--max-dead", "1")
        head, late, due, dead = output.splitlines()
        assert (code, head) == (1, "unhealthy")
        assert late.startswith("orders: the earliest due message is 0:10:0")
        assert late.endswith(" late; at most 0:01:00 is allowed: no worker serves it")
        assert due == "orders: 3+ messages are due; at most 2 are allowed"
        assert dead == "orders: 2 dead letters; at most 1 are allowed"

    def test_a_limit_that_is_reached_is_none(self) -> None:
        MessageFactory.create_batch(3)
        DeadLetterFactory.create_batch(2)
        assert reasons("--max-age", "600", "--max-due", "3", "--max-dead", "2") == []

    def test_zero_is_a_limit(self) -> None:
        assert reasons("--max-dead", "0") == []
        DeadLetterFactory.create()
        assert reasons("--max-dead", "0") == ["orders: 1+ dead letters; at most 0 are allowed"]

    def test_only_the_queues_that_were_named_are_judged(self) -> None:
        MessageFactory.create_batch(3)
        assert reasons("--queue", "ledger", "--max-due", "1") == []
        assert len(reasons("--queue", "ledger", "--queue", "orders", "--max-due", "1")) == 1


class TestDatabase:
    def test_missing_migrations_are_named(self) -> None:
        recorder = MigrationRecorder(connection)
        recorder.record_unapplied("delayed_queue", "0001_initial")
        try:
            [reason] = reasons("--max-due", "0")
        finally:
            recorder.record_applied("delayed_queue", "0001_initial")
        assert reason == "migrations of delayed_queue are missing: 0001_initial"

    def test_migrations_of_other_apps_are_not_its_business(self) -> None:
        recorder = MigrationRecorder(connection)
        recorder.record_unapplied("example_project", "0002_sales_reports")
        try:
            assert reasons() == []
        finally:
            recorder.record_applied("example_project", "0002_sales_reports")

    def test_a_database_that_refuses_is_unhealthy(self) -> None:
        with changed("PORT", "1"):
            [reason] = reasons()
        assert reason.startswith("the database 'default' cannot be queried: ")
        assert "\n" not in reason

    @pytest.mark.slow
    def test_a_database_that_does_not_answer_is_not_waited_for(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            port = str(mute.getsockname()[1])
            with changed("HOST", "127.0.0.1"), changed("PORT", port):
                began_at = time.monotonic()
                assert len(reasons()) == 1
        assert time.monotonic() - began_at < 30

    def test_the_connection_of_the_caller_is_left_alone(self) -> None:
        before = connections["default"]
        before.ensure_connection()
        raw = before.connection
        reasons("--max-due", "1")
        assert connections["default"] is before
        assert before.connection is raw


@contextmanager
def changed(name: str, value: str) -> Iterator[None]:
    settings: dict[str, Any] = connection.settings_dict
    kept = settings[name]
    settings[name] = value
    try:
        yield
    finally:
        settings[name] = kept


class TestFile:
    def test_a_fresh_one_is_healthy_whatever_the_database_says(self, tmp_path: Path) -> None:
        write_health_file(tmp_path / "health", HEALTHY)
        with changed("PORT", "1"):
            assert reasons("--file", str(tmp_path / "health")) == []

    def test_an_old_one_is_not(self, tmp_path: Path) -> None:
        path = tmp_path / "health"
        write_health_file(path, HEALTHY)
        old = time.time() - 30
        os.utime(path, (old, old))
        assert reasons("--file", str(path)) == []
        [reason] = reasons("--file", str(path), "--max-file-age", "20")
        assert "is 30 s old" in reason

    def test_none_is_not(self, tmp_path: Path) -> None:
        [reason] = reasons("--file", str(tmp_path / "health"))
        assert "cannot be read" in reason

    @pytest.mark.parametrize(
        "arguments", [["--max-due", "0"], ["--max-age", "0"], ["--queue", "orders"]]
    )
    def test_limits_of_queues_do_not_go_with_it(self, arguments: list[str]) -> None:
        with pytest.raises(CommandError, match="--file checks one worker") as raised:
            run("--file", "health", *arguments)
        assert raised.value.returncode == 2


@pytest.mark.parametrize("name", ["queuestats", "queuehealth"])
def test_every_option_is_documented(name: str) -> None:
    page = documents.read(documents.DOCS / "guides/monitoring.md")
    command = load_command_class("delayed_queue", name)
    own = documents.options_of(command) - documents.options_of(BaseCommand())
    assert own
    assert {option for option in own if option not in page} == set()
