"""The guide's examples, followed from top to bottom in an empty directory."""

from __future__ import annotations

import doctest
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter, Message
from tests.spark.support import with_jvm
from tests.support import documents
from tests.support.processes import ROOT

pytestmark = [*with_jvm, pytest.mark.usefixtures("queue")]

GUIDE = ROOT / "docs/guides/spark.md"
README = ROOT / "README.md"


def test_the_guide_does_what_it_says(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    here = f"file://{tmp_path}"
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    (incoming / "a.json").write_text('{"key": "order-3", "payload": "1"}\n')
    text = "\n".join(block.text for block in documents.blocks(GUIDE, "pycon"))
    # The JVM was started elsewhere, and keeps its working directory.
    for name in ("lake/orders", "lake/checkpoint", "incoming", "fill", "copies"):
        text = text.replace(f'"{name}"', f'"{here}/{name}"')
    told: list[str] = []
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=flags)
    example = doctest.DocTestParser().get_doctest(text, {}, "guide", str(GUIDE), 0)
    runner.run(example, out=told.append)
    for each in ("VIEW orders_now", "TABLE queues", "TABLE refunds"):
        spark.sql(f"DROP {each}")
    assert runner.summarize(verbose=False).failed == 0, "".join(told)


def test_the_lines_of_the_readme_write_drain_and_archive(
    spark: Any, queue: DelayedQueue, lake: str
) -> None:
    queue.offer_or_update("dead", 1)
    envelope = queue.try_poll()
    assert envelope is not None
    assert envelope.reject("no")
    DeadLetter.objects.update(died_at=datetime(2026, 1, 1, tzinfo=UTC))

    df = spark.createDataFrame([("A-21", '{"total": 40}')], "key string, payload string")
    (write,) = documents.blocks(README, "pycon")
    exec(write.text.removeprefix(">>> "), {"df": df})  # noqa: S102 # our own page
    assert queue.read("A-21").payload == {"total": 40}  # type: ignore[union-attr]

    (shell,) = [b for b in documents.blocks(README, "shell") if "queuepipeline" in b.text]
    commands = [line.split() for line in shell.text.replace("lake/", f"{lake}/").splitlines()]
    for command in commands:
        assert command[:2] == ["manage.py", "queuepipeline"]
        call_command(*command[1:])
    assert not Message.objects.exists()
    assert not DeadLetter.objects.exists()
    read = {command[-1]: spark.read.parquet(command[-1]).count() for command in commands}
    assert read == {f"{lake}/orders": 1, f"{lake}/archive": 1}
