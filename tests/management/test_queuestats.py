"""``manage.py queuestats``: metrics for people, dashboards and autoscalers."""

from __future__ import annotations

import json
import signal
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delayed_queue.handlers import registry
from delayed_queue.observe.overview import MAX_KINDS
from tests.support.factories import DeadLetterFactory, MessageFactory
from tests.support.processes import managed, wait_until

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("queuestats", *arguments, stdout=out)
    return out.getvalue()


def rows(*arguments: str) -> dict[str, dict[str, Any]]:
    found = json.loads(run(*arguments, "--format", "json"))["queues"]
    return {each["kind"]: each for each in found}


def fill() -> None:
    MessageFactory.create_batch(3, due=True)
    MessageFactory.create_batch(2, scheduled=True)
    MessageFactory.create(leased=True)
    DeadLetterFactory.create_batch(4)


def test_json_has_each_state() -> None:
    fill()
    orders = rows("--queue", "orders")["orders|json"]
    assert 60 <= orders.pop("oldest_due_age_seconds") < 120
    assert [each["reason"] for each in orders.pop("late")] == ["unserved"]
    assert orders == {
        "queue": "orders", "kind": "orders|json",
        "due": 3, "scheduled": 2, "leased": 1, "dead": 4, "cut": [],
    }  # fmt: skip


def test_the_table_has_a_line_for_each_queue() -> None:
    fill()
    MessageFactory.create(kind="later|text", scheduled=True)
    lines = [line.split() for line in run("--queue", "orders", "--queue", "later").splitlines()]
    assert lines[0] == ["queue", "codec", "due", "scheduled", "leased", "dead", "oldest", "due"]
    assert lines[1][:6] == ["orders", "json", "3", "2", "1", "4"]
    assert lines[1][6].startswith("0:01:")
    assert lines[2] == ["later", "text", "0", "1", "0", "0", "-"]
    assert " ".join(lines[3]) == "orders is late: no worker serves it"
    assert len(lines) == 4


def test_without_names_all_there_are_and_all_with_a_handler() -> None:
    MessageFactory.create(kind="unheard|json")
    DeadLetterFactory.create(kind="forgotten|json")
    found = rows()
    assert {"unheard|json", "forgotten|json"} <= found.keys()
    assert {handler.kind for handler in registry} <= found.keys()


class TestNames:
    def test_a_queue_that_is_empty_is_zero(self) -> None:
        found = rows("--queue", "ledger", "--queue", "own|avro", "--queue", "ledger")
        assert found.keys() == {"ledger|json", "own|avro"}
        assert {each["due"] for each in found.values()} == {0}
        assert {each["oldest_due_age_seconds"] for each in found.values()} == {None}

    def test_each_codec_of_a_name_is_found(self) -> None:
        MessageFactory.create(kind="orders|text")
        MessageFactory.create(kind="orders|bytes")
        assert rows("--queue", "orders").keys() == {"orders|text", "orders|bytes"}

    def test_o24_an_unknown_name_is_an_error(self) -> None:
        with pytest.raises(CommandError, match=r"no queue 'ledgers'\. Did you mean") as caught:
            run("--queue", "ledgers")
        assert caught.value.returncode == 2


@pytest.mark.django_db(transaction=True)
def test_o24_watching_refreshes_until_ctrl_c() -> None:
    with managed("queuestats", "--queue", "ledger", "--watch") as process:
        wait_until(lambda: process.said().count("oldest due") == 2)
        process.send_signal(signal.SIGINT)
        code, said = process.ended()
    assert code == 0
    assert "Traceback" not in said


class TestBounds:
    def test_counts_stop_at_the_cap_and_say_so(self) -> None:
        MessageFactory.create_batch(5)
        orders = rows("--queue", "orders", "--cap", "3")["orders|json"]
        assert (orders["due"], orders["cut"]) == (3, ["due"])
        table = run("--queue", "orders", "--cap", "3")
        assert "3+" in table
        assert "counting stopped there" in table
        assert "counting stopped there" not in run("--queue", "orders")

    def test_a_few_statements_for_a_hundred_queues(self) -> None:
        for number in range(MAX_KINDS + 1):
            MessageFactory.create(kind=f"kind-{number}|json")
        with CaptureQueriesContext(connection) as captured:
            answer = json.loads(run("--format", "json"))
        assert len(captured) <= 7
        assert (len(answer["queues"]), answer["queues_left_out"]) == (MAX_KINDS, True)
        assert f"Only {MAX_KINDS} queues are shown" in run()


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_away_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "PORT", "1")
    with pytest.raises(CommandError, match="The database 'default' cannot be queried") as raised:
        run()
    assert raised.value.returncode == 1
