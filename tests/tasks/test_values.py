"""Odd arguments, results and exceptions: each result is true, and the worker keeps running."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from django.db import transaction
from django.utils.translation import gettext_lazy

from delayed_queue.models import DeadLetter, Message
from delayed_queue.tasks._api import TaskResultStatus
from tests.tasks.conftest import drained
from tests.tasks.work import UNSTORABLE

pytestmark = pytest.mark.django_db(transaction=True)


class Size(enum.IntEnum):
    SMALL = 1


class TestArguments:
    def test_what_is_json_arrives(self, work: Any) -> None:
        arrivals = [
            ((1, [2, (3,)]), [1, [2, [3]]]),
            ({1: "a", 2: None}, {"1": "a", "2": None}),
            ({"": {"": []}}, {"": {"": []}}),
            ("a\x00b", "a\x00b"),
            (" \U0001f600\u2028", " \U0001f600\u2028"),
            (10**4000, 10**4000),
            (Size.SMALL, 1),
            (-0.0, -0.0),
            (1e308, 1e308),
            (True, True),
        ]
        results = [work.echo.enqueue(given) for given, _ in arrivals]
        drained(concurrency=1)
        assert repr(work.said) == repr([arrives for _, arrives in arrivals])
        for result, (_, arrives) in zip(results, arrivals, strict=True):
            assert work.echo.get_result(result.id).args == [arrives]

    @pytest.mark.parametrize("kind", ["itself", "deep"])
    def test_what_never_ends_is_refused_by_name(self, work: Any, kind: str) -> None:
        given: list[Any] = []
        given.append(given if kind == "itself" else 1)
        for _ in range(100_000 if kind == "deep" else 0):
            given = [given]
        for call in (
            lambda: work.echo.enqueue(given),
            lambda: work.echo.enqueue(value=given),
            lambda: work.echo.get_backend().enqueue_many(work.echo, [(given,)]),
        ):
            with pytest.raises(ValueError, match=r"tests\.tasks\.work\.echo: .*nested"):
                call()
        assert not Message.objects.exists()

    def test_a_text_that_is_not_there_yet_is_refused_by_name(self, work: Any) -> None:
        with pytest.raises(TypeError, match=r"work\.echo: args\[0\].*str\(\)"):
            work.echo.enqueue(gettext_lazy("later"))

    def test_keys_that_have_no_order_are_refused_by_name(self, work: Any) -> None:
        with pytest.raises((TypeError, ValueError), match=r"work\.echo: args\[0\].*keys"):
            work.echo.enqueue({1: "a", "b": 2})


class TestReturnValues:
    def test_a_large_one_is_kept_and_one_that_is_too_large_is_a_failure(self, work: Any) -> None:
        kept = [("text", 9_999_990), ("nested", 300), ("n", 4000)]
        refused = [("text", 10_000_000), ("nested", 100_000), ("n", 10_000)]
        results = [work.give.enqueue(*each) for each in (*kept, *refused)]
        drained()
        for result, each in zip(results[:3], kept, strict=True):
            assert work.give.get_result(result.id).return_value == work.give.func(*each)
        for result in results[3:]:
            assert work.give.get_result(result.id).status == TaskResultStatus.FAILED

    @pytest.mark.parametrize("name", ["leave", "aleave", "leave_in_transaction"])
    def test_one_that_cannot_be_stored_ends_the_task_after_one_call(self, work, name):  # T16
        task = getattr(work, name)
        results = {what: task.enqueue(what) for what in UNSTORABLE}
        assert drained().dead == len(UNSTORABLE)
        assert sorted(work.said) == sorted(UNSTORABLE)
        for what, result in results.items():
            result.refresh()
            (error,) = result.errors
            assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
            assert f"{task.module_path}: the {UNSTORABLE[what][1]}" in error.traceback
        reasons = DeadLetter.objects.values_list("reason", flat=True)
        assert all(each.startswith(f"{task.module_path}: the ") for each in reasons)


class TestAttempts:  # T16
    """Two deliveries ended with their process: they left no record, but count."""

    def test_all_that_count_them_agree(self, work: Any) -> None:
        result = work.tell.enqueue()
        Message.objects.filter(key=result.id).update(attempts=2)
        result.refresh()
        assert result.attempts == 2
        drained()
        result.refresh()
        assert (result.return_value["attempt"], result.attempts) == (3, 3)
        assert result.worker_ids[:2] == ["", ""]

    def test_of_failed_ones_too(self, work: Any) -> None:
        result = work.thrice.enqueue()
        Message.objects.filter(key=result.id).update(attempts=1)
        drained()
        result.refresh()
        assert (result.status, len(work.said)) == (TaskResultStatus.FAILED, 2)
        assert (result.attempts, len(result.errors)) == (3, 2)
        assert DeadLetter.objects.get().attempts == 3


ODD = [
    "unprintable", "broken", "looped", "noted", "nul", "long", "group", "exit",
    "interrupt", "generator", "name", "stop", "module",
]  # fmt: skip


class TestErrors:
    @pytest.mark.parametrize("name", ["throw", "athrow"])
    def test_whatever_it_is_the_task_has_failed_and_others_run(self, work: Any, name: str) -> None:
        with transaction.atomic():
            results = [getattr(work, name).enqueue(how) for how in ODD]
            beside = work.echo.enqueue(1)
        tally = drained()
        assert (tally.done, tally.dead) == (1, len(ODD))
        for each in results:
            found = getattr(work, name).get_result(each.id)
            (error,) = found.errors
            assert (found.status, bool(error.traceback)) == (TaskResultStatus.FAILED, True)
        assert DeadLetter.objects.count() == len(ODD)
        assert work.echo.get_result(beside.id).return_value == 1
