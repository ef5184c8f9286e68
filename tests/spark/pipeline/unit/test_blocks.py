"""Packs of offers: made of lines, and unpacked; without a JVM (P6)."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.spark.pipeline import blocks as module
from delayed_queue.spark.pipeline.blocks import DIGEST, Blocks, Unpacking, unpacked
from delayed_queue.spark.pipeline.lines import JsonReader
from delayed_queue.spark.pipeline.records import Checker, Rules
from delayed_queue.spark.pipeline.repeats import Candidates, Cut, coming_again
from delayed_queue.spark.source.rules import OFFERS

OWN = 1_900_000_000_000


def checked(*lines: tuple[int, Any], file: str = "f") -> list[dict[str, Any]]:
    """Return the rows that a task makes of lines, which are pairs of block and record."""
    columns = {
        "value": [json.dumps(record).encode() for _, record in lines],
        "__file": [file] * len(lines), "__block": [block for block, _ in lines],
    }  # fmt: skip
    blocks = Blocks(Checker(Rules("orders")), JsonReader())
    made = [*blocks.take(pa.RecordBatch.from_pydict(columns)), *blocks.end()]
    return [row for batch in made for row in batch.to_pylist()]


def packs_of(rows: list[dict[str, Any]], repeated: list[int] | None = None) -> pa.RecordBatch:
    packs = [{**row, "repeated": repeated} for row in rows if row["offers"]]
    return pa.RecordBatch.from_pylist(packs)


def record(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "payload": 1, **more}


def test_each_block_has_its_packs_bad_records_and_counts():
    bad, first, end, *others = checked((0, record("a")), (0, {}), (0, record("b")), (64, {}))
    assert (bad["place"], bad["reasons"]) == (1, ["It has no key."])
    assert unpacked(pa.scalar(first["offers"]))["place"].to_pylist() == [0, 2]
    assert [end[name] for name in ("block", "lines", "good", "bad", "is_open")] == [
        0, 3, 2, 1, False,
    ]  # fmt: skip
    assert [(row["block"], row["lines"], row["bad"]) for row in others] == [
        (64, None, None), (64, 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "most"), [("_PACK_ROWS", 1), ("_PACK_BYTES", 1)])
def test_a_full_pack_is_closed(name: str, most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, name, most)
    monkeypatch.setattr(module, "_LINES", 2)
    rows = checked(*((0, record(str(n))) for n in range(5)))
    places = [row["place"] for row in rows if row["offers"]]
    assert places == ([0, 1, 3] if name == "_PACK_BYTES" else [0, 3])
    found = [key for batch in Unpacking({("f", 0): 0})([packs_of(rows)]) for key in
             batch["key"].to_pylist()]  # fmt: skip
    assert found == list("01234")


def test_an_unpacked_offer_is_spread_unless_it_has_a_time_or_is_repeated():
    rows = checked(
        (64, record("a")), (64, {}), (64, record("b", schedule_at=OWN)), (64, record("c")),
        (64, record("d", delay=5)), (64, record("e")),
    )  # fmt: skip
    (offers,) = Unpacking({("f", 64): 10}, 1000, 1.5)([packs_of(rows, [0])])
    assert offers.schema == OFFERS
    times = offers.select(["key", "schedule_at", "delay"]).to_pylist()
    assert [tuple(each.values()) for each in times] == [
        ("b", OWN, None), ("c", 1000 + 19, None), ("d", None, 5000), ("e", 1000 + 22, None),
    ]  # fmt: skip


@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_digests_that_come_again_are_those_of_repeated_keys(packs: list[list[str]], pieces: int):
    rows = [row for n, keys in enumerate(packs)
            for row in checked(*((0, record(key)) for key in keys), file=str(n))]  # fmt: skip
    batch = packs_of(rows)
    cut = pa.Table.from_batches(Cut(pieces)(iter([batch])))
    again: list[int] = []
    for piece in range(pieces):
        some = cut.filter(pa.compute.equal(cut["piece"], piece)).to_batches()
        (found,) = coming_again(iter(some))
        again += np.frombuffer(found["digests"][0].as_py(), DIGEST).tolist()
    wanted = {key for key, times in Counter(chain.from_iterable(packs)).items() if times > 1}
    columns = batch.select(["file", "block", "place", "offers"])
    found_rows = pa.Table.from_batches(Candidates(np.array(again, DIGEST))(iter([columns])))
    assert {each.rpartition("\x00")[2] for each in found_rows["id"].to_pylist()} == wanted
    assert len(again) == len(wanted)
    positions = [(row["file"], row["pos"]) for row in found_rows.to_pylist()]
    assert positions == [
        (str(n), pos) for n, keys in enumerate(packs) for pos, key in enumerate(keys)
        if key in wanted
    ]  # fmt: skip
    everything = pa.Table.from_batches(Candidates(None)(iter([columns])))
    assert len(everything) == sum(map(len, packs))
