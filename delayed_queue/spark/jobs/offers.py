"""Rows into the queue, through the data source, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from delayed_queue.spark.jobs.counts import Counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Offer:
    """Under which id the ledger counts, and whether what is stored already is replaced."""

    job: str
    mode: str = "offer"


def offer(spark: SparkSession, frame: DataFrame, how: Offer) -> Counts:
    """Offer the rows and return the counts of the ledger."""
    raise NotImplementedError
