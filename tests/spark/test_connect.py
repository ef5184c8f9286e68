"""Spark Connect: the commands on a session whose JVM cannot be asked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from delayed_queue.models import Message
from tests.spark.drivers import finish, program
from tests.spark.support import with_jvm

pytestmark = [*with_jvm, pytest.mark.slow, pytest.mark.usefixtures("queue")]


@pytest.mark.long
def test_every_command_ends_as_on_a_session_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(b"id,amount\na,1\nb,2\n,3\n"))
    with program("connected", str(tmp_path)) as process:
        output = finish(process)
    told = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    codes = [(each["command"], each["code"]) for each in told if "code" in each]
    assert codes == [
        ("import", 3), ("snapshot", 0), ("drain", 0), ("replay", 0), ("drain", 0),
        ("report", 0), ("doctor", 0),
    ]  # fmt: skip
    answers = [each for each in told if "code" not in each]
    assert (answers[0]["created"], answers[0]["quarantined"]) == (2, 1)
    assert [answers[number]["messages"] for number in (1, 2, 4)] == [2, 2, 2]
    assert answers[4]["done"] == 2
    assert Message.objects.count() == 0
