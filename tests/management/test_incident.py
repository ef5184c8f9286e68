"""The page about an incident, followed step by step: by commands, and in the admin."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.test import Client

from delayed_queue import DelayedQueue, handler
from delayed_queue.handlers import registry
from delayed_queue.models import BulkRun, DeadLetter, Message
from delayed_queue.queue.bulk import step
from delayed_queue.queue.fingerprints import fingerprint
from tests.admin.support import LETTERS, page
from tests.support import documents
from tests.support.processes import wait_until

PAGE = documents.DOCS / "operations/an-incident.md"
KIND = "letters|json"
DOWN, SLOW, LOST = "the provider answered status 503", "no answer in time", "no address"
FAILURES, RUNS, QUEUES = f"{LETTERS}failures/", "/admin/delayed_queue/bulkrun/", "/admin/"
_FILL = """
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt",
    fingerprint
)
SELECT %s, %s || n, '1', 5, %s, 0, 0, extract(epoch FROM now()) * 1000 - 600000 + n, %s
FROM generate_series(1, %s) AS n
"""

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def served() -> Iterator[None]:
    """Register the queue, as on a host with its handler."""
    handler("letters")(lambda envelope: None)
    yield
    registry.remove("letters")


def outage(letters: int) -> None:
    with connection.cursor() as cursor:
        for name, reason, share in (("a", DOWN, 0.6), ("b", SLOW, 0.3), ("c", LOST, 0.1)):
            many = int(letters * share)
            cursor.execute(_FILL, [KIND, f"{name}-", reason, fingerprint(reason, None), many])


class Provider:
    """Handles messages as workers would, and runs the bulk runs; it is down, then back."""

    def __init__(self) -> None:
        self.is_down = True

    def work(self, *, in_time: bool) -> None:
        """Run until each run has ended; without ``in_time``, do not wait for its next step."""

        def ended() -> bool:
            if not in_time:
                BulkRun.objects.filter(state="running").update(next_at=F("created_at"))
            while step():
                self.handle()
            self.handle()
            return not BulkRun.objects.filter(state="running").exists()

        wait_until(ended, 600)

    def handle(self) -> None:
        queue = DelayedQueue("letters")
        while batch := queue.try_poll_many(1_000):
            if not self.is_down:
                batch.acknowledge()
                continue
            for envelope in batch:
                assert envelope.reject(DOWN)


def commands() -> list[str]:
    section = documents.read(PAGE).partition("## With commands")[2].partition("\n## ")[0]
    blocks = re.findall(r"```shell\n(.*?)```", section, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def run(line: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        line = line.replace(f"${name}", value)
    program, script, *arguments = shlex.split(line)
    assert (program, script) == ("python", "manage.py")
    out = StringIO()
    with suppress(SystemExit):
        call_command(*arguments, stdout=out, stderr=out)
    return out.getvalue()


def groups() -> dict[str, str]:
    """Return the page's names of the three groups, and a letter of the first."""
    out = StringIO()
    call_command("queuedead", "groups", "--queue", "letters", "--format", "json", stdout=out)
    by_count = sorted(json.loads(out.getvalue()), key=lambda row: row["dead"], reverse=True)
    ids = [row["failure"] for row in by_count]
    return {
        "GROUP": ids[0], "SECOND": ids[1], "THIRD": ids[2], "LETTER": str(by_count[0]["newest_id"])
    }  # fmt: skip


@pytest.mark.parametrize("letters", [200, pytest.param(10_000, marks=pytest.mark.long)])
def test_the_commands_of_the_page_mend_it(letters, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outage(letters)
    provider, names, said = Provider(), groups(), []
    for line in commands():
        if "queuedead runs" in line:
            provider.work(in_time=letters > 1_000)
            provider.is_down = False
        said.append(run(line, names))

    assert said[0].startswith("unhealthy\nletters: ")
    assert said[-1] == "healthy\n"
    assert "503" in said[3]
    last = json.loads(run("python manage.py queuedead runs --format json", {}))
    assert [each["state"] for each in last] == ["done", "done", "done", "stopped"]
    assert last[-1]["done"] == 20
    assert (DeadLetter.objects.count(), Message.objects.count()) == (0, 0)
    assert len((tmp_path / "no-address.jsonl").read_text().splitlines()) == int(letters * 0.1)
    run_of_first = BulkRun.objects.get(why="now it is")
    assert run_of_first.pace == 500
    if letters > 1_000:
        spent = (run_of_first.ended_at - run_of_first.created_at).total_seconds()
        assert run_of_first.done / spent <= 510


def test_the_steps_in_the_admin_mend_it(admin_client: Client) -> None:
    outage(60)
    provider, names = Provider(), groups()
    section = documents.read(PAGE).partition("## With the admin")[2]
    seen: list[str] = []

    def look(url: str) -> str:
        seen.append(page(admin_client, url))
        return seen[-1]

    def choose(action: str, group: str, **given: str) -> None:
        target = {action: f"{group}:{KIND}"}
        seen.append(admin_client.post(FAILURES, target).content.decode())
        begun = admin_client.post(FAILURES, {**target, "confirmed": "yes", **given})
        assert begun.headers["Location"].startswith(RUNS)

    def state_of_last(work: Callable[[], None]) -> str:
        work()
        return look(RUNS)

    look("/admin/delayed_queue/queueoverview/")
    look(LETTERS)
    assert look(FAILURES).count("Redrive…") == 3
    assert DOWN.split()[0] in look(f"{LETTERS}{names['LETTER']}/change/")
    canary = {"pace": "500", "canary": "20", "canary_deaths": "3", "why": "provider is back"}
    choose("redrive", names["GROUP"], **canary)
    assert "running, the canary first" in look(RUNS)
    assert "died of the same failure" in state_of_last(lambda: provider.work(in_time=False))
    provider.is_down = False
    choose("redrive", names["GROUP"], **canary)
    choose("redrive", names["SECOND"], over="1s")
    choose("drop", names["THIRD"])
    state_of_last(lambda: provider.work(in_time=False))

    states = list(BulkRun.objects.order_by("-id").values_list("state", flat=True))
    assert states == ["done", "done", "done", "stopped"]
    assert not DeadLetter.objects.exists()
    for label in re.findall(r"\*([A-Z][^*\n]+)\*", section):
        assert any(label in each for each in seen) or label == "Resume", label
