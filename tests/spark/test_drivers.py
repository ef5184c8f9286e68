"""A killed driver, and two at once, beside the session of the run."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from delayed_queue.models import Message
from tests.spark.drivers import TIMEOUT, fill, in_lake, program
from tests.spark.programs import draining
from tests.spark.support import with_jvm
from tests.support.processes import kill_family, wait_until

pytestmark = [*with_jvm, pytest.mark.slow, pytest.mark.usefixtures("queue")]


@pytest.mark.long
def test_a_driver_is_killed_and_another_goes_on(tmp_path: Path, spark: Any):
    """In a task, and between a batch's sink and its commit: inside the lease it is replayed.

    Another process continues: the session of the run.
    """
    keys = fill(100, "file", "batch")
    with program("draining", str(tmp_path), "stand", "local[3,4]") as process:
        for each in ("file", "batch"):
            wait_until((tmp_path / each / "reached").exists, TIMEOUT)
        kill_family(process)
    assert Message.objects.count() == 200
    for each in ("file", "batch"):
        draining.run(spark, each, str(tmp_path), "none")
    assert Message.objects.count() == 0
    # The file sink knows its interrupted batch. A foreachBatch had written it already.
    assert in_lake(tmp_path / "file" / "rows") == Counter(keys)
    found = in_lake(tmp_path / "batch" / "rows")
    assert sorted(found) == keys
    assert sorted(key for key, times in found.items() if times > 1) == keys[:40]


@pytest.mark.long
def test_two_drivers_on_one_queue(tmp_path: Path, spark: Any):
    """Each has its own reader process, and shares only the database."""
    keys = fill(400, "file")
    lakes = [tmp_path / "one", tmp_path / "two"]
    for at in lakes:
        at.mkdir()
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(draining.run, spark, "file", str(at), "none") for at in lakes]
        for each in both:
            each.result(TIMEOUT)
    found = [in_lake(at / "file" / "rows") for at in lakes if (at / "file/rows").exists()]
    assert sum(found, Counter()) == Counter(keys)
    assert Message.objects.count() == 0
