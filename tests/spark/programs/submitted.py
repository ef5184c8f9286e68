"""What spark-submit runs on a cluster: offer, read, drain. The package comes by --py-files."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from delayed_queue.spark import counts, drain, register


def main(directory: str) -> None:
    spark = register(SparkSession.builder.getOrCreate())
    rows = spark.range(0, 2000, 1, 4).selectExpr("concat('k', id) AS key", "'1' AS payload")
    for job in ("one", "two"):
        rows.write.format("delayed_queue").options(queue="orders", job=job).mode("append").save()
    found = [counts(job) for job in ("one", "two")]
    read = spark.read.format("delayed_queue").option("queue", "orders").load().count()
    stream = spark.readStream.format("delayed_queue").option("queue", "orders").load()
    writer = stream.writeStream.format("parquet").option("path", f"{directory}/rows")
    drain(writer, f"{directory}/checkpoint")
    drained = spark.read.parquet(f"{directory}/rows").select("key").distinct().count()
    print("RESULT", found[0].created, found[1].ignored, read, drained)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
