"""Commands that list and repair dead letters, and their errors (O11)."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from io import StringIO

import pytest
import time_machine
from django.core.management import CommandError, call_command
from pytest_django import Settings

from delayed_queue import DelayedQueue
from delayed_queue.models import BulkRun, DeadLetter, Message
from delayed_queue.queue.bulk import step
from tests.support.factories import DeadLetterFactory, MessageFactory, from_now
from tests.support.processes import ROOT

pytestmark = pytest.mark.django_db


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def run(*arguments: str, out: StringIO | None = None) -> str:
    out = out or StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_what_is_no_use_when_it_is_cut_is_whole_and_ids_are_as_they_are_typed():
    died, name = datetime(2026, 5, 1, 3, 0, 7, tzinfo=UTC), "notifications-of-tenants|json"
    error = '  File "/srv/shop.py", line 4, in close\n    pay()\nshop.errors.GatewayTimeout: no'
    DeadLetterFactory.create(
        id=1_234_567, kind=name, key="k" * 60, fingerprint="a" * 16, died_at=died, last_error=error
    )
    groups, letters = (run("queuedead", verb, out=Terminal()) for verb in ("groups", "list"))
    assert "a" * 16 in groups
    assert "2026-05-01 03:00:07" in groups
    # On a line of its own, without the module of its class.
    assert "\n  error: GatewayTimeout: no" in groups
    assert "2026-05-01 03:00:07" in letters
    assert "1234567" in letters
    assert all(len(line) <= 80 for line in groups.splitlines())
    (row,) = json.loads(run("queuedead", "groups", "--format", "json"))
    assert (row["failure"], row["dead"], row["newest_id"]) == ("a" * 16, 1, 1_234_567)
    assert run("queuedead", "runs") == "Nothing.\n"


def test_o24_keys_are_whole_and_reasons_have_a_line_of_their_own(monkeypatch):
    DeadLetterFactory.create(key="k" * 60, reason="r" * 60)
    narrow = run("queuedead", "list", out=Terminal())
    assert "k" * 60 in narrow
    assert f"\n  reason: {'r' * 60}\n" in narrow
    complete = run("queuedead", "list").splitlines()[1]
    assert "k" * 60 in complete
    assert "r" * 60 in complete
    monkeypatch.setenv("COLUMNS", "200")
    assert run("queuedead", "list", out=Terminal()).splitlines()[1] == complete


def test_o24_a_failure_and_a_group_of_messages_are_two_filters():
    DeadLetterFactory.create(key="a", fingerprint="f", group="acme")
    DeadLetterFactory.create(key="b", fingerprint="f", group="other")
    DeadLetterFactory.create(key="c", fingerprint="g", group="acme")

    def keys(*arguments: str) -> list[str]:
        listed = run("queuedead", "list", "--queue", "orders", *arguments, "--format", "json")
        return sorted(each["key"] for each in json.loads(listed))

    assert keys("--failure", "f") == ["a", "b"]
    assert keys("--group", "acme") == ["a", "c"]
    assert keys("--failure", "f", "--group", "acme") == ["a"]


def test_letters_are_listed_and_shown():
    letter = DeadLetterFactory.create(fingerprint="a")
    DeadLetterFactory.create(kind="other|json")
    assert len(json.loads(run("queuedead", "list", "--format", "json"))) == 2
    (row,) = json.loads(
        run("queuedead", "list", "--queue", "orders", "--failure", "a", "--format", "json")
    )
    assert row["id"] == letter.id
    assert "ValueError: no such order" in run("queuedead", "show", str(letter.id))


def test_what_is_shown_holds_nothing_that_a_terminal_would_obey():
    """Keys and errors often come from third parties; their lines stay."""
    key, error = "a\x1b[2Jb", "ValueError: first\n\tsecond\x1b]0;owned\x07\r\x9bm"
    letter = DeadLetterFactory.create(key=key, reason=error, last_error=error)
    MessageFactory.create(key=key, due=True, last_error=error)
    for arguments in (("queuedead", str(letter.id)), ("queuemessages", "orders", key)):
        said = run(arguments[0], "show", *arguments[1:])
        assert not set(said) & set("\x1b\x07\x9b\r")
        assert "\n\tsecond" in said


def test_letters_are_exported_as_lines_of_json():
    DeadLetterFactory.create(key="a", payload=b"1", headers={"url": "x"})
    DeadLetterFactory.create(key="b", payload=b"\xff")
    text, binary = map(json.loads, run("queuedead", "export", "orders").splitlines())
    assert (text["key"], text["payload"], text["headers"]) == ("a", "1", {"url": "x"})
    assert binary["payload_base64"] == "/w=="
    assert json.loads(run("queuedead", "export", "orders", "--key-from", "b"))["key"] == "b"
    assert DeadLetter.objects.count() == 2


def test_what_died_long_ago_is_pruned(settings: Settings):
    DeadLetterFactory.create(died_at=from_now(days=-40))
    DeadLetterFactory.create(kind="other|json", died_at=from_now(days=-40))
    DeadLetterFactory.create()
    assert run("queuedead", "prune", "--dry-run").startswith("2 dead letters would be taken")
    assert json.loads(run("queuedead", "prune", "--queue", "orders", "--format", "json")) == {
        "deleted": 1
    }
    with time_machine.travel(from_now(days=365)):  # a host with a wrong clock
        assert run("queuedead", "prune", "--dry-run").startswith("1 dead letter would be taken")
    assert run("queuedead", "prune") == "Deleted: 1 dead letter.\n"
    settings.DELAYED_QUEUE = {**settings.DELAYED_QUEUE, "DEAD_LETTER_RETENTION": None}
    with pytest.raises(CommandError, match="add --older-than"):
        run("queuedead", "prune")


def test_a_redrive_is_tried_begun_paused_resumed_and_cancelled():
    DeadLetterFactory.create_batch(3, fingerprint="a")
    arguments = ("queuedead", "redrive", "orders", "--failure", "a", "--pace", "1")
    assert run(*arguments, "--dry-run") == "3 dead letters would be taken; nothing was changed.\n"
    assert not BulkRun.objects.exists()
    assert "has started: 3 dead letters" in run(*arguments, "--canary", "1", "--why", "mended")
    number = str(BulkRun.objects.get().pk)
    for command, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        run("queuedead", command, number)
        assert state in run("queuedead", "runs")


@pytest.mark.parametrize(
    ("arguments", "pace", "canary"),
    [
        (("redrive", "orders"), 100, 20),
        (("drop", "orders"), 100, 0),
        (("redrive", "orders", "--pace", "0", "--canary", "0"), None, 0),
        (("redrive", "orders", "--over", "2h", "--canary", "5"), 3 / 7200, 5),
    ],
)
def test_o25_a_run_starts_slowly_and_behind_a_canary(arguments, pace, canary):
    DeadLetterFactory.create_batch(3)
    run("queuedead", *arguments)
    started = BulkRun.objects.get()
    assert (started.pace, started.canary) == (pace, canary)


def test_o23_a_run_is_over_one_group_of_messages():
    DeadLetterFactory.create(group="acme")
    DeadLetterFactory.create()
    assert "started: 1 dead letter." in run("queuedead", "drop", "orders", "--group", "acme")
    while step():
        pass
    assert not DeadLetter.objects.filter(group="acme").exists()


def test_a_drop_by_reason_is_carried_out_by_workers():
    DeadLetterFactory.create_batch(2, reason="refused")
    DeadLetterFactory.create()
    run("queuedead", "drop", "orders", "--reason", "refused", "--older-than", "1m")
    while step():
        pass
    assert DeadLetter.objects.count() == 1


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("queuedead", "redrive", "ordrs"), "Did you mean 'orders'?", 2),
        (("queuedead", "redrive", "orders", "--failure", "x"), "has no dead letters", 1),
        (("queuedead", "list", "--failure", "x"), "add --queue", 2),
        (("queuedead", "drop", "orders", "--canary", "1"), "takes no canary", 1),
        (
            ("queuedead", "redrive", "orders", "--canary", "0", "--canary-deaths", "2"),
            "the number of dead letters that go first",
            1,
        ),
        (("queuedead", "drop", "orders", "--older-than", "soon"), "not a duration", 1),
        (("queuedead", "redrive", "orders", "--over", "1h", "--pace", "9"), "not both", 1),
        (("queuedead", "export", "orders", "--newer-than", "1h", "--older-than", "2h"), "later", 1),
        (("queuedead", "redrive", "orders", "--pace", "100001"), "number from 0 to 100,000", 1),
        (("queuestats", "--cap", "0"), "--cap: '0' is not a number", 1),
        (("queuedead", "show", "999"), "no dead letter 999", 1),
        (("queuedead", "cancel", "999"), "no run 999 that", 1),
        (("installcron", "--force"), "--force needs --once", 2),
        (("queuepause", "ordrs"), "Did you mean 'orders'?", 2),
        (("queuemessages", "show", "orders", "x"), "no message 'x'", 1),
        (("queuemessages", "drop", "orders", "x"), "no message 'x'", 1),
        (("queuedead", "--database", "nope", "groups"), "no database alias", 2),
        (("queuedead", "groups", "--database", "nope"), "no database alias", 2),
        (("queuemessages", "list", "orders", "--database", "nope"), "no database alias", 2),
        (("queuegroups", "clear", "orders", "--database", "nope"), "no database alias", 2),
    ],
)
def test_a_slip_is_one_sentence_and_an_exit_code(arguments: tuple[str, ...], said: str, code: int):
    DeadLetterFactory.create()
    with pytest.raises(CommandError, match=r"^[^\n]+$") as caught:
        run(*arguments)
    assert said in str(caught.value)
    assert caught.value.returncode == code


def test_a_second_run_is_refused():
    DeadLetterFactory.create()
    run("queuedead", "redrive", "orders")
    with pytest.raises(CommandError, match="in progress") as caught:
        run("queuedead", "redrive", "orders")
    assert caught.value.returncode == 75


def test_a_queue_is_paused_and_resumed():
    MessageFactory.create(due=True)
    assert run("queuepause", "orders", "--dry-run") == "orders|json would be paused.\n"
    assert run("queueresume", "orders", "--dry-run") == "orders|json is not paused.\n"
    assert not DelayedQueue("orders").is_paused()
    assert run("queuepause", "orders", "--why", "a move") == "orders|json is paused.\n"
    assert "paused already" in run("queuepause", "orders", "--dry-run")
    told = json.loads(run("queueresume", "orders", "--dry-run", "--format", "json"))
    assert told == {"queue": "orders|json", "was_changed": False}
    assert "already" in run("queuepause", "orders")
    assert DelayedQueue("orders").is_paused()
    assert "is resumed" in run("queueresume", "orders")
    assert "was not paused" in run("queueresume", "orders")


def test_a_message_is_found_shown_delivered_now_and_dropped():
    MessageFactory.create(key="a", scheduled=True)
    MessageFactory.create(key="a", kind="other|json", due=True)
    assert len(json.loads(run("queuemessages", "find", "a", "--format", "json"))) == 2
    assert "scheduled" in run("queuemessages", "show", "orders", "a")
    assert "is due now" in run("queuemessages", "deliver-now", "orders", "a")
    with pytest.raises(CommandError, match="is due, not scheduled"):
        run("queuemessages", "deliver-now", "orders", "a")
    leased = MessageFactory.create(key="b", leased=True)
    listed = json.loads(run("queuemessages", "list", "orders", "--format", "json"))
    assert [each["key"] for each in listed] == ["a", "b"]
    assert str(leased.lease_id) in run("queuemessages", "release", "orders", "b", "--dry-run")
    assert "is due now" in run("queuemessages", "release", "orders", "b")
    with pytest.raises(CommandError, match="is due, not leased"):
        run("queuemessages", "release", "orders", "b")
    assert "dropped" in run("queuemessages", "drop", "orders", "a")
    assert "dropped" in run("queuemessages", "drop", "orders", "b")
    assert Message.objects.count() == 1


def test_the_names_of_queues_are_completed_as_the_docs_say():
    MessageFactory.create(due=True)
    assert "orders" in run("queuestats", "--format", "names").splitlines()
    text = (ROOT / "docs/guides/monitoring.md").read_text()
    function = next(each for each in text.splitlines() if each.startswith("_queues() {"))
    script = f"""python() {{ printf 'orders\\nbills\\nother\\n'; }}
{function}
COMP_WORDS=(manage.py queuepause o) COMP_CWORD=2
_queues && echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["orders", "other"]
