"""The pieces, checksums and holders of archives: without a JVM and without a database."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.commands.archives import batched
from delayed_queue.spark.jobs.files import FileDigest, digest_of
from delayed_queue.spark.jobs.tables import is_dead, named, new_holder, parse_only, ranges_of


class TestArchives:
    @given(st.lists(st.integers(0, 1000), unique=True, min_size=1), st.integers(1, 10))
    def test_pieces_hold_every_key_once(self, keys: list[int], piece: int) -> None:
        keys.sort()
        starts = keys[::piece]
        bounds = starts if starts[-1] == keys[-1] else [*starts, keys[-1]]
        found = [
            key
            for lower, upper, is_last in ranges_of([str(each) for each in bounds])
            for key in keys
            if int(lower) <= key and (key < int(upper) or (is_last and key == int(upper)))
        ]
        assert found == keys

    def test_no_bounds_no_pieces(self) -> None:
        assert ranges_of([]) == []

    def test_batches(self) -> None:
        assert list(batched(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]]

    def test_the_checksum_changes_with_any_file(self) -> None:
        files = [FileDigest("a", 1, "x"), FileDigest("b", 2, "y")]
        assert digest_of(files) == digest_of(files[::-1])
        assert digest_of(files) != digest_of(files[:1])
        assert digest_of(files) != digest_of([files[0], FileDigest("b", 2, "z")])

    def test_holders(self) -> None:
        assert is_dead(new_holder())  # an earlier run of this very process
        assert not is_dead(f"elsewhere:{os.getpid()}:x")
        host = new_holder().partition(":")[0]
        assert not is_dead(f"{host}:1:x")
        assert is_dead(f"{host}:{2**22 + 1}:x")
        assert not is_dead("")

    def test_tables_by_name(self) -> None:
        assert named("dead-letters", None, None, {}).age == "diedAt"
        assert named("notes", "uuid", "ended_at", {}).key == "uuid"
        with pytest.raises(InvalidConfiguration, match="--age"):
            named("notes", None, None, {})

    def test_only(self) -> None:
        assert parse_only(["status=sent,failed"]) == {"status": ["sent", "failed"]}
        assert parse_only(["a=1", "a=2", "b=3"]) == {"a": ["1", "2"], "b": ["3"]}
        for wrong in ("status", "status=", "=x"):
            with pytest.raises(InvalidConfiguration, match="--only"):
                parse_only([wrong])
