"""Each block of the README is executed."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import timedelta
from typing import Any, Final

import pytest

from delayed_queue import models
from delayed_queue.http.tokens import VERBS, create_token
from delayed_queue.notifications.models import Notification
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.project.test_docs_code import README, forget_registrations, run
from tests.support import documents

__all__ = ["forget_registrations"]
pytestmark = pytest.mark.django_db(transaction=True)

# Print the status before each body, and replace the README's URLs by those of the tests.
PRELUDE: Final = r"""
set -euo pipefail
curl() { command curl --silent --show-error --write-out '\n%{http_code}\n' "$@"; }
AUTH="Authorization: Bearer $TOKEN"
"""


def test_python_blocks_run_and_the_worker_prints_what_is_shown(capsys):
    run(README)
    command, *printed = documents.blocks(README, "text")[0].text.splitlines()
    assert command == "$ python manage.py runqueueworker"
    soon = timedelta(milliseconds=100)
    counts = Worker(WorkerOptions(queues=("orders",), burst=True, poll_interval=soon)).run()
    assert counts.done == counts.total == 1
    assert capsys.readouterr().out.splitlines() == printed
    (task,) = models.Message.objects.filter(kind__startswith="default")
    ticks = models.Message.objects.filter(kind="reports|json")
    assert all(re.fullmatch(r"nightly/[0-9a-f]{32}/\d{13}", each.key) for each in ticks)
    assert not models.Message.objects.exclude(pk__in=[task.pk, *ticks.values_list("pk", flat=True)])


def test_curl_blocks_are_answered_as_shown(live_server: Any, settings: Any) -> None:
    settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {"CALLBACKS": {"ENABLED": True}}
    calls = [each.text for each in documents.blocks(README, "shell") if "curl" in each.text]
    token = create_token("readme", verbs=VERBS, topics=["*"])
    done = subprocess.run(
        ["/bin/bash", "-c", "\n".join([PRELUDE, *calls])],
        env={
            "PATH": "/usr/bin:/bin",
            "QUEUE": f"{live_server.url}/queue/v1",
            "NOTIFY": f"{live_server.url}/v1",
            "TOKEN": token,
        },
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    statuses = re.findall(r"^\d{3}$", done.stdout, re.MULTILINE)
    assert statuses == ["202", "204", "202", "400"], done.stdout
    bodies = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    (sms,) = Notification.objects.all()
    assert bodies[1] == {"id": str(sms.pk), "status": "ENQUEUED", "duplicate": False, "segments": 1}
    shown = documents.blocks(README, "text")[1].text
    (error,) = bodies[2]["errors"]
    assert f'"path": "{error["path"]}", "message": "{error["message"]}"' in shown


def test_it_is_short() -> None:
    assert len(documents.read(README).splitlines()) <= 200
