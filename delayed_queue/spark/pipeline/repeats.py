"""Records of an import that share a key: one is offered, the others are left out.

Spark moves digests of eight bytes, a few thousand in a row. The ids of records are compared only
where their digests are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from delayed_queue.spark.pipeline.blocks import DIGEST, digests_of, ids_of, unpacked
from delayed_queue.spark.pipeline.offers import ranked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# At most N digests are sent to each task; with more, all records are compared.
MOST_REPEATED: Final = 1_000_000


def without_repeated(packs: DataFrame, pieces: int, mode: str) -> tuple[DataFrame, int]:
    """Return the packs with the positions of repeated keys in ``repeated``, and their number.

    ``offer`` uses the first record of a key, ``upsert`` the last.
    """
    from pyspark.sql.functions import broadcast, expr

    cut = packs.select("digests").mapInArrow(Cut(pieces), "piece int, digests binary")
    again = (
        cut.repartitionById(pieces, "piece").mapInArrow(coming_again, "digests binary").collect()
    )
    found = np.frombuffer(b"".join(row["digests"] for row in again), DIGEST)
    if not len(found):
        return packs.selectExpr("*", "CAST(NULL AS ARRAY<INT>) AS repeated"), 0
    candidates = Candidates(np.sort(found) if len(found) <= MOST_REPEATED else None)
    places = "file string, block bigint, place bigint"
    rows = packs.select("file", "block", "place", "offers").mapInArrow(
        candidates, f"{places}, pos int, id string"
    )
    turn = "" if mode == "offer" else " DESC"
    order = ", ".join(f"{name}{turn}" for name in ("file", "block", "place", "pos"))
    left_out = ranked(rows, pieces, order, "id").where("rank > 1").groupBy("file", "block", "place")
    repeated = left_out.agg(expr("collect_list(pos) AS repeated"))
    number = repeated.agg(expr("coalesce(sum(size(repeated)), 0)")).collect()[0][0]
    return packs.join(broadcast(repeated), ["file", "block", "place"], "left"), number


@dataclass(frozen=True, slots=True)
class Cut:
    """Cuts the digests of a partition into pieces; equal ones are in the same piece."""

    pieces: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            digests = _all_of(batch)
            of_piece = [digests[digests % self.pieces == each] for each in range(self.pieces)]
            texts = [each.tobytes() for each in of_piece]
            columns = {"piece": pa.array(range(self.pieces), pa.int32()), "digests": texts}
            yield pa.RecordBatch.from_pydict(columns)


def coming_again(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the digests that come more than once, each once."""
    digests = np.sort(np.concatenate([np.empty(0, DIGEST), *map(_all_of, batches)]))
    found = np.unique(digests[1:][digests[1:] == digests[:-1]])
    yield pa.RecordBatch.from_pydict({"digests": [found.tobytes()]})


def _all_of(batch: pa.RecordBatch) -> Any:
    return np.frombuffer(b"".join(batch["digests"].to_pylist()), DIGEST)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Finds the records whose digests are among the given ones, in order."""

    digests: Any

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in range(batch.num_rows):
                yield self._of_pack(batch.slice(row, 1))

    def _of_pack(self, pack: pa.RecordBatch) -> pa.RecordBatch:
        offers = unpacked(pack["offers"][0])
        positions = np.arange(len(offers), dtype=np.int32)
        if self.digests is not None:
            positions = positions[np.isin(digests_of(offers), self.digests)]
        columns = {name: pa.repeat(pack[name][0], len(positions)) for name in pack.schema.names[:3]}
        ids = ids_of(offers).take(pa.array(positions))
        return pa.RecordBatch.from_pydict({**columns, "pos": positions, "id": ids})
