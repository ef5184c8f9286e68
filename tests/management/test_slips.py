"""Mistakes at the command line: one sentence with the remedy, no traceback (O14)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from io import StringIO

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.db import ProgrammingError, connection, transaction
from pytest_django import Settings

from delayed_queue import DelayedQueue
from delayed_queue.http.models import Topic
from delayed_queue.management.base import WRONG_SCHEMA, WRONG_USAGE, QueueCommand
from delayed_queue.models import Schedule
from tests.support.factories import DeadLetterFactory, MessageFactory
from tests.support.missing import not_installed
from tests.support.processes import manage

# Minimal arguments of each command, so that it gets as far as the mistake.
LEAST: dict[str, list[str]] = {
    "installcron": ["--once"],
    "queuebatches": ["list"],
    "queuedead": ["groups"],
    "queueendpoint": ["list"],
    "queuehealth": [],
    "queuemessages": ["find", "orders"],
    "queuegroups": ["list", "orders"],
    "queuepause": ["orders"],
    "queuepipeline": ["doctor"],
    "queueresume": ["orders"],
    "queuestats": [],
    "queueworkers": ["list"],
    "queuetoken": ["list"],
    "runqueueworker": ["--burst", "--processes", "0"],
}


# Commands with a specific answer to missing tables.
_OTHERWISE = {"queuehealth", "queuepipeline", "runqueueworker"}


def slip(name: str, *arguments: str) -> CommandError:
    with pytest.raises(CommandError) as raised:
        call_command(name, *arguments, stdout=StringIO(), stderr=StringIO())
    assert "\n" not in str(raised.value)
    return raised.value


def placed(name: str, *options: str) -> list[str]:
    """Return the arguments with options in front: options after a verb belong to the verb."""
    return [name, *options, *LEAST[name]]


class TestDatabase:
    def test_every_command_is_looked_at(self) -> None:
        # The notifications' commands have their own test.
        wanted = ("delayed_queue", "delayed_queue.http", "delayed_queue.spark")
        ours = {name for name, app in get_commands().items() if app in wanted}
        assert ours == LEAST.keys()

    @pytest.mark.parametrize("name", LEAST)
    def test_an_alias_that_is_not_there(self, name: str) -> None:
        given = ("--database", "defualt")
        behind = [(name, *LEAST[name], *given)] if name != "queuepipeline" else []
        for arguments in (placed(name, *given), *behind):
            error = slip(*arguments)
            assert str(error) == (
                "There is no database alias 'defualt'. Known aliases: default. "
                "Did you mean 'default'?"
            )
            assert error.returncode == WRONG_USAGE

    @pytest.mark.parametrize("name", LEAST)
    def test_an_alias_that_is_not_postgresql(self, name: str, lite: str) -> None:
        error = slip(*placed(name, "--database", lite))
        assert str(error) == "The database 'lite' is sqlite; delayed_queue needs PostgreSQL."
        assert error.returncode == 1


@pytest.fixture
def unmigrated(db: None) -> Iterator[None]:
    """Make the test's transaction find no tables, as before the first ``migrate``."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA empty_one")
        cursor.execute("SET LOCAL search_path TO empty_one")
    yield
    transaction.set_rollback(True)


@pytest.mark.usefixtures("unmigrated")
class TestNotMigrated:
    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            *((name, least) for name, least in LEAST.items() if name not in _OTHERWISE),
            ("installcron", []),
            ("queuedead", ["redrive", "orders"]),
            ("queuemessages", ["drop", "orders", "a"]),
        ],
    )
    def test_commands_say_what_to_run(self, name: str, arguments: list[str]) -> None:
        error = slip(name, *arguments)
        assert "un manage.py migrate" in str(error)
        assert error.returncode == WRONG_SCHEMA

    def test_an_offer_says_what_to_run_in_a_note(self) -> None:
        with pytest.raises(ProgrammingError) as raised:
            DelayedQueue("orders").offer_or_update("k", 1)
        assert raised.value.__notes__ == [
            "The database 'default' lacks tables of delayed_queue, or has them of another version. "
            "Run manage.py migrate."
        ]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("queuemessages", ["find", "Stra\udcdfe"]),
        ("queuepause", ["Stra\udcdfe"]),
        ("queuehealth", ["--queue", "Stra\udcdfe"]),
    ],
)
def test_bytes_of_another_encoding_are_refused(db: None, name: str, arguments: list[str]) -> None:
    # Python decodes the byte of an ß from a Latin-1 terminal as a surrogate.
    error = slip(name, *arguments)
    assert str(error).endswith("is not valid Unicode text.")
    assert "Stra" in str(error)
    assert error.returncode == WRONG_USAGE


@pytest.mark.parametrize("library", ["yarl", "cryptography"])
def test_a_missing_extra_is_named(library: str) -> None:
    with not_installed(
        library, "delayed_queue.http.callbacks", "delayed_queue.http.callbacks.operating"
    ):
        error = slip("queueendpoint", "list")
    needed = "queueendpoint needs the extra [http]: "
    assert str(error).startswith(f"{needed}pip install 'django-delayed-queue[http]'")
    assert library in str(error)


class TestWorker:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--processes", "-1"], "--processes: '-1' is not a number from 0 to 1,000"),
            (["--processes", "9" * 5000], "is not a number from 0 to 1,000"),
            (["--concurrency", "0"], "--concurrency: '0' is not a number from 1 to 1,000"),
            (["--async-concurrency", "x"], "'x' is not a number from 1 to 10,000"),
            (["--batch-size", "-5"], "--batch-size: '-5' is not a number from 1 to 10,000"),
            (["--max-messages", "0"], "--max-messages: '0' is not a number from 1 to"),
            (["--lease", "-3"], "lease: '-3' is not a duration"),
            (["--lease", "nan"], "lease: 'nan' is not a duration"),
            (["--poll-interval", "0s"], "poll-interval must be a duration from 1ms to 1d"),
            (["--shutdown-timeout", "-1"], "shutdown-timeout: '-1' is not a duration"),
            (["--health-address", "99"], "'99' is not HOST:PORT, such as 127.0.0.1:8080"),
            (["--health-address", "localhost:99999"], "is not HOST:PORT"),
            (["--topics", "a"], "Callbacks are off, so --topics and --callbacks-only have nothing"),
            (["--callbacks-only"], "Set DELAYED_QUEUE['CALLBACKS']['ENABLED'] to True."),
            (["--queue", "legder"], "Did you mean 'ledger'?"),
        ],
        ids=" ".join,
    )
    def test_what_is_said(self, arguments: list[str], said: str) -> None:
        assert said in str(slip("runqueueworker", *arguments))


def health(*arguments: str) -> str:
    out = StringIO()
    with suppress(SystemExit):
        call_command("queuehealth", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db(transaction=True)
class TestHealth:
    def test_a_queue_that_is_not_there_is_unhealthy(self) -> None:
        assert health("--queue", "legder") == (
            "unhealthy\nlegder: there is no such queue: no handler, message, dead letter or "
            "schedule has it. Did you mean 'ledger'?\n"
        )
        assert health("--queue", "legder", "--max-age", "1").startswith("unhealthy")

    def test_whatever_is_known_of_it_makes_it_one(self) -> None:
        MessageFactory.create(kind="stored|json")
        DeadLetterFactory.create(kind="dead|text")
        Schedule.objects.create(
            kind="ticking|json", key_prefix="p", queue="ticking", type="periodic", expression="1h"
        )
        Topic.objects.create_once("posted", using="default")
        DelayedQueue("paused").pause("for a while")
        for name in ("ledger", "stored", "dead", "ticking", "posted", "paused"):
            assert health("--queue", name) == "healthy\n", name

    def test_a_kind_in_full_is_taken_at_its_word(self) -> None:
        for kind in ("elsewhere|avro", "7ab2b0dfa43e1a1f12169da88468fb53"):
            assert health("--queue", kind) == "healthy\n"


@pytest.mark.django_db
@pytest.mark.parametrize("arguments", [["--once"], ["--list"], ["--dry-run"], ["--uninstall"]])
def test_installcron_says_that_there_is_nothing(arguments: list[str], settings: Settings) -> None:
    settings.DELAYED_QUEUE = {}
    out = StringIO()
    call_command("installcron", *arguments, stdout=out)
    assert out.getvalue().startswith("There are no schedules: declare one in DELAYED_QUEUE['CRON']")
    out = StringIO()
    call_command("installcron", *arguments, "--format", "json", stdout=out)
    assert out.getvalue() == "[]\n"


def test_all_commands_share_the_mechanism() -> None:
    homes = get_commands()
    for name in LEAST:
        assert isinstance(load_command_class(homes[name], name), QueueCommand)


@pytest.mark.slow
@pytest.mark.django_db
def test_the_command_itself_says_one_line() -> None:
    code, output = manage("runqueueworker", "--database", "nope").ended()
    said = "CommandError: There is no database alias 'nope'. Known aliases: default."
    assert (code, output.splitlines()) == (WRONG_USAGE, [said])
