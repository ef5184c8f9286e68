"""Drained and restarted workers, by command and from the admin (O21)."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from delayed_queue import DelayedQueue, Envelope
from delayed_queue.models import Message, Worker
from delayed_queue.worker.board import Board
from tests.admin.support import operator, page
from tests.support.factories import worker_row
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)

WORKERS = "/admin/delayed_queue/worker/"


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("queueworkers", *arguments, stdout=out)
    return out.getvalue()


def listed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("list", "--format", "json"))
    return found


def await_iterations(board: Board) -> None:
    for _ in range(3):
        before = board.turned_at
        wait_until(lambda: board.turned_at > before)  # noqa: B023


@pytest.mark.parametrize("transactional", [False, True])
def test_o21_a_drained_worker_claims_nothing_until_it_is_resumed(transactional: bool) -> None:
    handler = handler_of("mail", lambda envelope: None, transactional=transactional)
    worker = worker_with(handler, worker_id="web-1")
    with running(worker):
        wait_until(Worker.objects.exists)
        assert run("drain", "web-1") == "1 will drain: web-1, process 0.\n"
        wait_until(lambda: worker.board.is_drained)
        await_iterations(worker.board)  # a claim of before may still be under way
        wait_until(lambda: not worker.dispatcher.has_runs)
        DelayedQueue("mail").offer_or_update("k", 1)
        await_iterations(worker.board)
        assert Message.objects.values_list("lease_id", "attempts").get() == (None, 0)
        assert [each["state"] for each in listed()] == ["drained"]
        run("resume", "web-1")
        wait_until(lambda: worker.counts.done == 1)
    assert not worker.is_used_up


def test_o21_a_restarted_worker_finishes_and_asks_for_a_replacement() -> None:
    worker = worker_with(handler_of("mail", lambda envelope: None), worker_id="web-1")
    stops: list[str] = []
    worker.on_stop = lambda: stops.append("limited")
    with running(worker) as thread:
        wait_until(Worker.objects.exists)
        run("restart", "web-1")
        thread.join(20)
        assert not thread.is_alive()
    assert worker.is_used_up
    assert stops == ["limited"]
    assert not Worker.objects.exists()


def test_o21_what_replaces_a_drained_process_is_drained_too() -> None:
    board = Board.new(4)
    board.drain(is_drained=True)
    board.wipe()
    handled: list[Envelope] = []
    worker = worker_with(handler_of("mail", handled.append), worker_id="web-1")
    worker.board.drain(is_drained=board.is_drained)
    with running(worker):
        wait_until(Worker.objects.exists)
        assert Worker.objects.get().command == "drain"
        run("resume", "web-1")
        wait_until(lambda: not worker.board.is_drained)


def test_o21_the_list_has_what_an_operator_needs() -> None:
    worker = worker_with(handler_of("mail", lambda envelope: None), worker_id="w", concurrency=3)
    with running(worker):
        wait_until(Worker.objects.exists)
        (found,) = listed()
    assert (found["worker"], found["threads"], found["state"]) == ("w", "0/3", "alive")
    assert found["memory_mb"] > 10
    assert found["queues"] == ["mail"]
    assert {"host", "version", "process", "pid", "running"} <= found.keys()


@pytest.mark.parametrize("name", ["web-1", "db-7", "all", "id"])
def test_o21_processes_are_named_by_worker_host_or_id(name: str) -> None:
    row = worker_row("web-1", host="db-7")
    worker_row("web-2", host="db-8", command="drain")
    named = str(row.pk) if name == "id" else name
    assert "would drain: web-1, process 0." in run("drain", named, "--dry-run")
    assert Worker.objects.get(pk=row.pk).command == ""
    run("drain", named)
    assert Worker.objects.get(pk=row.pk).command == "drain"
    assert run("drain", named) == "Nothing changes.\n"


def test_o21_an_unknown_worker_is_an_error() -> None:
    worker_row("web-1")
    with pytest.raises(CommandError, match=r"no worker 'web-2'\. Did you mean 'web-1'\?") as caught:
        run("restart", "web-2")
    assert caught.value.returncode == 2


def press(client: Client, name: str, row: Worker, **more: str) -> None:
    data = {"action": name, "_selected_action": str(row.pk), **more}
    assert client.post(WORKERS, data).status_code in (200, 302)
    row.refresh_from_db()


def test_o21_the_admin_does_the_same(admin_client: Client) -> None:
    row = worker_row("web-1", memory=300 * 2**20, threads=8)
    html = page(admin_client, f"{WORKERS}{row.pk}/change/")
    assert 'value="drain"' in html
    assert 'value="resume"' not in html
    assert "300.0" in html
    press(admin_client, "drain", row)
    assert row.command == "drain"
    assert "drained" in page(admin_client, WORKERS)
    press(admin_client, "resume", row)
    assert row.command == ""
    press(admin_client, "restart", row)
    assert row.command == "", "it asks first"
    press(admin_client, "restart", row, confirmed="yes")
    assert row.command == "restart"


def test_o21_the_admin_asks_for_a_permission() -> None:
    row = worker_row("web-1")
    assert 'value="drain"' not in page(operator("view_worker"), f"{WORKERS}{row.pk}/change/")
    client = operator("view_worker", "operate_worker")
    press(client, "drain", row)
    assert row.command == "drain"
