"""Files and checksums of archives: without a JVM and a database."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.pipeline.manifests import Sums, files_read
from delayed_queue.spark.pipeline.tables import parse_only


class TestArchives:
    @given(st.lists(st.integers(0, 4)), st.integers(1, 3))
    def test_each_file_is_read_to_its_end(self, lengths: list[int], size: int) -> None:
        files = [f"f{n}" for n, length in enumerate(lengths) for _ in range(length)]
        rows = pa.table({"key": range(len(files)), "file": pa.array(files, pa.string())})
        found = list(files_read(iter(rows.to_batches(max_chunksize=size))))
        assert [name for name, _ in found] == list(dict.fromkeys(files))
        keys = [key for _, table in found for key in table["key"].to_pylist()]
        assert keys == list(range(len(files)))

    @given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.randoms())
    def test_checksums_are_the_same_in_any_order(self, hashes: list[int], random: Any) -> None:
        one = [Sums(1, each) for each in hashes]
        mixed = random.sample(one, len(one))
        assert sum(one, Sums()) == sum(mixed, Sums())

    def test_only(self) -> None:
        assert parse_only(["status=sent,failed"]) == {"status": ["sent", "failed"]}
        assert parse_only(["a=1", "a=2", "b=3"]) == {"a": ["1", "2"], "b": ["3"]}
        for wrong in ("status", "status=", "=x"):
            with pytest.raises(InvalidConfiguration, match="--only"):
                parse_only([wrong])
