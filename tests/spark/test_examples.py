"""The examples of the guide, followed from top to bottom in an empty directory."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pytest

from tests.spark.support import with_jvm
from tests.support import documents
from tests.support.processes import ROOT

pytestmark = [*with_jvm, pytest.mark.usefixtures("queue")]

GUIDE = ROOT / "docs/guides/spark.md"


def test_the_guide_does_what_it_says(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    here = f"file://{tmp_path}"
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    (incoming / "a.json").write_text('{"key": "order-3", "payload": "1"}\n')
    text = "\n".join(block.text for block in documents.blocks(GUIDE, "pycon"))
    # The JVM was started elsewhere, and knows no other directory of work.
    for name in ("lake/orders", "lake/checkpoint", "incoming", "fill"):
        text = text.replace(f'"{name}"', f'"{here}/{name}"')
    told: list[str] = []
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=flags)
    example = doctest.DocTestParser().get_doctest(text, {}, "guide", str(GUIDE), 0)
    runner.run(example, out=told.append)
    for each in ("VIEW orders_now", "TABLE queues"):
        spark.sql(f"DROP {each}")
    assert runner.summarize(verbose=False).failed == 0, "".join(told)
