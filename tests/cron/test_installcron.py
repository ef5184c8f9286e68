"""Keeping declared schedules: ``installcron``, the settings, the decorator, workers (C14)."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delayed_queue import CronEntry, CronSchedule, DailySchedule, DelayedQueue, PeriodicSchedule
from delayed_queue.cron.keeper import CronKeeper, declared, schedule
from delayed_queue.cron.registry import crontab, definition_of, schedule_of
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import from_milliseconds
from delayed_queue.models import Message, Schedule
from tests.support.processes import managed, wait_until, worker

HOURLY = {"queue": "ledger", "key_prefix": "hourly", "schedule": "0 * * * *", "payload": {"n": 1}}
OTHERWISE = {**HOURLY, "schedule": "30 * * * *"}


def payload_of(at: datetime) -> str:
    return at.isoformat()


def fails(at: datetime) -> str:
    raise RuntimeError("no payload today")


@pytest.fixture(autouse=True)
def _declared(settings: Any) -> None:
    settings.DELAYED_QUEUE = {"CRON": [HOURLY]}


@pytest.fixture
def made(db: None) -> Schedule:
    """A schedule that an operator has created."""
    return Schedule.objects.create(
        kind="ledger|json", key_prefix="made", queue="ledger", type="daily",
        expression="02:00, 14:30", timezone="Europe/Bucharest", payload="by hand",
    )  # fmt: skip


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("installcron", *arguments, stdout=out)
    return out.getvalue()


def answers(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--format", "json"))


def ticks(prefix: str = "hourly") -> list[Message]:
    return list(Message.objects.filter(key__startswith=f"{prefix}/").order_by("scheduled_at"))


# Declaring


def test_the_settings_take_dicts_and_entries(settings: Any):
    entry = CronEntry("ledger", "daily", DailySchedule(hours=[datetime.min.time()]))
    settings.DELAYED_QUEUE = {"CRON": [HOURLY, entry]}
    assert [each.key_prefix for each in declared()] == ["hourly", "daily"]
    assert declared()[0].generate(from_milliseconds(0)) == {"n": 1}


@pytest.mark.parametrize(
    ("configured", "hint"),
    [
        ([{**HOURLY, "key_prefx": "x"}], "Did you mean 'key_prefix'?"),
        ([{**HOURLY, "nonsense": "x"}], "Known: codec"),
        ([{"queue": "ledger"}], "lacks key_prefix, schedule"),
        ([{**HOURLY, "schedule": "61 * * * *"}], "Bad cron expression"),
        ([{**HOURLY, "schedule": 5}], "schedule is a cron expression"),
        ([{**HOURLY, "timezone": "Mars/Base"}], "Unknown time zone"),
        ([{**HOURLY, "schedule": PeriodicSchedule(timedelta(1)), "timezone": "UTC"}], "no time"),
        ([{**HOURLY, "key_prefix": " "}], "must not be blank"),
        ([{**HOURLY, "missed": "some"}], "Unknown policy"),
        ([{**HOURLY, "generator": "a.b"}], "a payload or a generator"),
        ([{**HOURLY, "payload": None, "generator": "no path"}], "dotted path"),
        ([{**HOURLY, "codec": "yaml"}], "Unknown codec"),
        ([{**HOURLY, "queue": ""}], "needs a name"),
        ([HOURLY, OTHERWISE], "has a schedule already"),
        (["hourly"], "a CronEntry or a dict"),
        (HOURLY, "must be a list"),
    ],
)
def test_what_is_wrong_in_the_settings_is_a_check_error(settings: Any, configured: Any, hint: str):
    settings.DELAYED_QUEUE = {"CRON": configured}
    (error,) = run_checks()
    assert error.id == "delayed_queue.E001"
    assert hint in (error.hint or "")


@pytest.fixture
def decorated() -> Iterator[CronEntry]:
    schedule("ledger", "decorated", "@daily", timezone="Europe/Bucharest")(payload_of)
    (entry,) = crontab
    yield entry
    crontab.remove(entry)


def test_the_decorator_declares_and_leaves_the_function(decorated: CronEntry):
    assert schedule("ledger", "decorated", "@daily")(payload_of) is payload_of  # as a reload does
    assert [each.key_prefix for each in declared()] == ["hourly", "decorated"]
    assert decorated.declared_in == __name__
    with pytest.raises(InvalidConfiguration, match="has a schedule already"):
        schedule("ledger", "decorated", "@daily")(fails)


def test_a_generator_may_be_a_dotted_path():
    path = f"{__name__}.payload_of"
    entry = CronEntry("ledger", "p", "@daily", generator=path)
    assert entry.generate(datetime(2030, 1, 1)) == "2030-01-01T00:00:00"  # noqa: DTZ001


@pytest.mark.parametrize(
    "schedule",
    [
        CronSchedule("*/5 * * * *"),
        CronSchedule("0 3 * * *", timezone="UTC", gap="skip", fold="second"),
        DailySchedule("Europe/Bucharest", [datetime(1, 1, 1, 2, 30, 15).time()]),  # noqa: DTZ001
        PeriodicSchedule(timedelta(minutes=90)),
        PeriodicSchedule(timedelta(milliseconds=1500)),
        PeriodicSchedule(timedelta(days=2)),
    ],
)
def test_what_is_written_can_be_read(schedule: Any):
    assert schedule_of(definition_of(schedule)) == schedule


@pytest.mark.parametrize("text", [("daily", "25:00"), ("other", "x"), ("periodic", "5 minutes")])
def test_what_cannot_be_read_is_refused(text: tuple[str, str]):
    with pytest.raises(InvalidConfiguration):
        schedule_of(definition_of(PeriodicSchedule(timedelta(1)))._replace(
            type=text[0], expression=text[1]
        ))  # fmt: skip


# Keeping


@pytest.mark.django_db
def test_once_installs_what_code_declares_and_operators_made(made: Schedule):
    found = {each["schedule"]: each for each in answers("--once")}

    assert found["ledger|json/hourly"]["outcome"] == "installed"
    assert found["ledger|json/hourly"]["created"] == 4
    assert len(ticks()) == 4
    assert bytes(ticks()[0].payload) == b'{"n":1}'
    assert bytes(ticks("made")[0].payload) == b'"by hand"'
    stored = Schedule.objects.get(key_prefix="hourly")
    assert (stored.type, stored.expression, stored.declared_in) == ("cron", "0 * * * *", "settings")

    assert "uninstalled 4" in run("--uninstall")
    assert not Message.objects.exists()


@pytest.mark.django_db
def test_a_dry_run_tells_the_difference_and_changes_nothing(settings: Any):
    (first,) = answers("--dry-run")
    assert (first["outcome"], first["created"]) == ("installed", 4)
    assert not Message.objects.exists()
    assert not Schedule.objects.exists()
    run("--once")
    settings.DELAYED_QUEUE = {"CRON": [OTHERWISE]}
    (changed,) = answers("--dry-run")
    assert (changed["created"], changed["removed"]) == (4, 4)
    assert {each.scheduled_at.minute for each in ticks()} == {0}


@pytest.mark.django_db
def test_list_shows_schedules_and_their_next_times(made: Schedule):
    before = {each["schedule"]: each for each in answers("--list")}
    assert before["ledger|json/hourly"]["installed_at"] is None
    run("--once")
    after = {each["schedule"]: each for each in answers("--list")}
    assert after["ledger|json/hourly"]["active_hash"] == before["ledger|json/hourly"]["config_hash"]
    assert after["ledger|json/made"]["declared_in"] == "admin"
    assert datetime.fromisoformat(after["ledger|json/made"]["next"]).minute in (0, 30)
    assert "ledger|json/made" in run("--list")
    assert "02:00, 14:30" in run("--list")


@pytest.mark.django_db
def test_one_that_fails_does_not_keep_the_others(settings: Any, caplog: pytest.LogCaptureFixture):
    bad = CronEntry("ledger", "bad", "@daily", generator=fails)
    settings.DELAYED_QUEUE = {"CRON": [bad, HOURLY]}
    with pytest.raises(CommandError, match="could not be installed"):
        run("--once")
    assert len(ticks()) == 4
    keeper = CronKeeper()
    caplog.clear()
    errors = [[each.error for each in keeper.check()] for _ in range(3)]
    assert errors == [["RuntimeError: no payload today", ""]] * 3
    [logged] = [each for each in caplog.records if "install_failed" in each.message]
    # The log holds the traceback of the generator, too.
    assert logged.exc_info is not None
    assert "in fails" in caplog.text


@pytest.mark.django_db
def test_c6_once_gives_way_to_a_newer_configuration_unless_forced(settings: Any):
    run("--once")
    settings.DELAYED_QUEUE = {"CRON": [OTHERWISE]}
    run("--once")
    settings.DELAYED_QUEUE = {"CRON": [HOURLY]}
    assert "gives way to" in run("--once")
    assert Schedule.objects.get().expression == "30 * * * *"
    assert "installed" in run("--once", "--force")
    assert Schedule.objects.get().expression == "0 * * * *"
    assert {each.scheduled_at.minute for each in ticks()} == {0}


@pytest.mark.django_db
def test_an_idle_pass_is_one_query(made: Schedule):
    keeper = CronKeeper()
    keeper.check()
    with CaptureQueriesContext(connection) as queries:
        assert {each.report for each in keeper.check()} == {None}
    assert len(queries) == 1


@pytest.mark.django_db
def test_a_pass_after_the_interval_installs_the_next_ticks():
    keeper = CronKeeper()
    keeper.check()
    Message.objects.all().delete()
    ago = from_milliseconds(1000)
    Schedule.objects.update(installed_at=ago, last_tick=ago)
    (kept,) = keeper.check()
    assert kept.report is not None
    assert kept.report.created == 5  # the latest missed tick, and the next four


@pytest.mark.django_db
def test_what_an_operator_pauses_is_taken_down_and_put_up_again(made: Schedule):
    keeper = CronKeeper()
    keeper.check()
    assert ticks("made")
    made.is_enabled = False
    made.save()
    keeper.check()
    assert not ticks("made")
    assert ticks()
    keeper.check()
    made.is_enabled = True
    made.save()
    keeper.check()
    assert ticks("made")


@pytest.mark.django_db
def test_an_operators_edit_wins_also_when_it_is_undone(made: Schedule):
    keepers = [CronKeeper(), CronKeeper()]
    for expression in ("02:00", "03:00", "02:00"):
        made.expression = expression
        made.save()
        for keeper in keepers:
            keeper.check()
        hours = {each.scheduled_at.minute for each in ticks("made")}
        assert hours == {0}
        made.refresh_from_db()
        assert made.expression == expression
        active = {each.key.split("/")[1] for each in ticks("made")}
        assert active == {made.config_hash}


@pytest.mark.django_db
def test_an_operators_new_payload_replaces_that_of_the_pending_ticks(made: Schedule):
    keeper = CronKeeper()
    keeper.check()
    made.payload = "changed"
    made.save()
    keeper.check()
    assert {bytes(each.payload) for each in ticks("made")} == {b'"changed"'}


@pytest.mark.django_db
def test_saving_leaves_what_installers_wrote_since(made: Schedule):
    stale = Schedule.objects.get(pk=made.pk)
    CronKeeper().check()
    stale.missed = "skip"
    stale.save()
    stored = Schedule.objects.get(pk=made.pk)
    assert stored.config_hash
    assert stored.last_tick is not None
    assert stored.missed == "skip"
    assert stored.installed_at is None


@pytest.mark.django_db
def test_what_an_operator_described_wrongly_is_logged_and_passed(made, caplog):
    Schedule.objects.filter(pk=made.pk).update(expression="26:00")
    keeper = CronKeeper()
    for _ in range(2):
        assert [each.name for each in keeper.check()] == ["ledger|json/hourly"]
    assert len([each for each in caplog.records if "'26:00'" in each.getMessage()]) == 1


@pytest.mark.django_db
def test_ticks_of_programs_are_none_of_its_business():
    DelayedQueue("ledger").cron.install_tick("a" * 32, "program", [])
    assert [each.name for each in CronKeeper().check()] == ["ledger|json/hourly"]


# Processes


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("arguments", [(), ("--no-cron",), ("--burst",)])
def test_workers_keep_them_unless_told_not_to(arguments: tuple[str, ...]):
    made = Schedule.objects.create(
        kind="ledger|json", key_prefix="made", queue="ledger", type="periodic", expression="1s"
    )
    with worker("--queue", "ledger", "--processes", "0", *arguments) as process:
        if not arguments:
            # Installed, delivered, and installed again.
            wait_until(lambda: Schedule.objects.get().last_tick is not None)
            first = Schedule.objects.get().last_tick
            wait_until(lambda: Schedule.objects.get().last_tick != first)
        elif "--burst" not in arguments:
            DelayedQueue("ledger").offer_or_update("k", 1)
            wait_until(lambda: not Message.objects.exists())
            process.send_signal(signal.SIGTERM)
        if arguments:
            assert process.wait(30) == 0
            made.refresh_from_db()
            assert made.config_hash == ""


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_command_keeps_them_until_it_is_stopped():
    Schedule.objects.create(
        kind="ledger|json", key_prefix="made", queue="ledger", type="periodic", expression="1h"
    )
    with managed("installcron") as process:
        wait_until(lambda: len(ticks("made")) == 4)
        process.send_signal(signal.SIGTERM)
        assert process.ended()[0] == 0
    assert len(ticks("made")) == 4
