"""Errors of refused calls name the task, the value and the remedy (T2, T15)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connections
from pytest_django import Settings

from delayed_queue.exceptions import InvalidMessage
from delayed_queue.tasks._api import InvalidTask, task
from delayed_queue.tasks.options import Options
from tests.tasks.conftest import BACKEND, configured

PATH = "tests.tasks.work.add"


def said_by(call: Any, *args: Any, kind: type[BaseException] = InvalidTask, **kwargs: Any) -> str:
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "kind", "shown", "advice"),
    [
        (date(2030, 1, 2), TypeError, "datetime.date(2030, 1, 2)", "isoformat()"),
        (datetime(2030, 1, 2, tzinfo=UTC), TypeError, "datetime.datetime(2030", "isoformat()"),
        (Decimal("1.5"), TypeError, "Decimal('1.5')", "str()"),
        ({1}, TypeError, "{1}", "a list"),
        (object(), TypeError, "<object object", "its key"),
        (float("nan"), ValueError, "nan", "None"),
        (b"\xff", ValueError, r"b'\xff'", "base64"),
        ("\ud800", ValueError, r"'\ud800'", "surrogate"),
    ],
)
def test_arguments_that_are_no_json(
    work, value, kind, shown, advice, django_assert_num_queries, db
):
    with django_assert_num_queries(0):
        for where, args, kwargs in (
            ("args[1]", (1, value), {}),
            ("kwargs['other']", (1,), {"other": value}),
            ("args[0][0]['at']", ([{"at": value}],), {}),
        ):
            said = said_by(work.add.enqueue, *args, kind=kind, **kwargs)
            for part in (PATH, where, shown, advice):
                assert part in said
        many = said_by(work.add.get_backend().enqueue_many, work.add, [1, (1, value)], kind=kind)
        assert f"{PATH}: args[1] is " in many


@pytest.mark.parametrize(
    ("wrong", "shown", "advice"),
    [
        ({"run_after": datetime(2030, 1, 1)}, "datetime.datetime(2030", "timezone.now()"),  # noqa: DTZ001
        ({"run_after": date(2030, 1, 1)}, "datetime.date(2030", "timezone.now()"),
        ({"run_after": timedelta(1)}, "datetime.timedelta(days=1)", "timezone.now()"),
        ({"run_after": "2030-01-01"}, "'2030-01-01'", "timezone.now()"),
        ({"queue_name": "secnd"}, "'secnd'", "Did you mean 'second'?"),
        ({"queue_name": "elsewhere"}, "'elsewhere'", "one of default, second"),
        ({"priority": 101}, "101", "between -100 and 100"),
        ({"priority": "high"}, "'high'", "between -100 and 100"),
    ],
)
def test_what_a_task_is_used_with(work: Any, wrong: Any, shown: str, advice: str) -> None:
    said = said_by(lambda: work.add.using(**wrong).enqueue(1))
    for part in (PATH, shown, advice):
        assert part in said


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"unknown key 'RESULT'. Did you mean 'RESULTS'\?"):
        Options.of({"RESULT": "7d"})


@pytest.fixture
def elsewhere() -> Iterator[str]:
    connections.settings["elsewhere"] = connections.settings["default"]
    yield "elsewhere"
    del connections.settings["elsewhere"]
    del connections["elsewhere"]


@pytest.mark.django_db
def test_a_transaction_of_another_database(work: Any, settings: Settings, elsewhere: str) -> None:
    settings.TASKS = configured(DATABASE=elsewhere)
    said = said_by(work.add.enqueue, 1)  # this test is a transaction of the default one
    for part in (PATH, repr(elsewhere), "'default'", "after the commit"):
        assert part in said


def test_without_the_app(settings: Settings) -> None:
    settings.INSTALLED_APPS = [
        each for each in settings.INSTALLED_APPS if each != "delayed_queue.tasks"
    ]
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}

    said = said_by(task, said_by)

    assert "TASKS['default']" in said
    assert "Add 'delayed_queue' and 'delayed_queue.tasks' to INSTALLED_APPS" in said


@pytest.mark.parametrize("value", ["a\x00b", "\ud800"])
def test_a_unique_name_that_cannot_be_stored(work, value, django_assert_num_queries, db):
    with django_assert_num_queries(0):
        said = said_by(work.once.enqueue, value, kind=InvalidMessage)
    assert said.startswith("The key that unique makes")
    assert repr(value)[1:-1] in said


@pytest.mark.parametrize("given", [(), (1, 2, 3), {"one": 1, "nosuch": 2}])
def test_arguments_that_do_not_fit_are_refused_with_the_reason(work, given, db):
    args, kwargs = ((), given) if isinstance(given, dict) else (given, {})
    for call in (
        lambda: work.add.enqueue(*args, **kwargs),
        lambda: work.add.get_backend().enqueue_many(work.add, [given]),
    ):
        with pytest.raises(InvalidTask, match=r"arguments of tests\.tasks\.work\.add do not fit: "):
            call()
