"""What Spark says when it lacks a package, and what the command says then."""

from __future__ import annotations

from importlib import metadata

import pytest

from delayed_queue.spark.pipeline.console import package_of, sentence_of

SPARK = metadata.version("pyspark")
LINE = ".".join(SPARK.split(".")[:2])
CALLED = "An error occurred while calling o54.load.\n: "
NO_CLASS = f"{CALLED}java.lang.RuntimeException: java.lang.ClassNotFoundException: Class "


@pytest.mark.parametrize(
    ("said", "package"),
    [
        (f"{CALLED}org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to "
         "find the data source: delta. Make sure the provider name is correct\nCaused by: "
         "java.lang.ClassNotFoundException: delta.DefaultSource",
         f"io.delta:delta-spark_{LINE}_2.13:VERSION"),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: ICEBERG. Make sure",
         f"org.apache.iceberg:iceberg-spark-runtime-{LINE}_2.13:VERSION"),
        ("[AVRO_DATA_SOURCE_NOT_ENABLED] Failed to find data source: avro. Avro is built-in but",
         f"org.apache.spark:spark-avro_2.13:{SPARK}"),
        *[
            (f"{NO_CLASS}org.apache.hadoop.fs.{name} not found",
             f"org.apache.spark:spark-hadoop-cloud_2.13:{SPARK}")
            for name in ("s3a.S3AFileSystem", "gs.GoogleHadoopFileSystem",
                         "azurebfs.SecureAzureBlobFileSystem", "azure.NativeAzureFileSystem$Secure")
        ],
        (f'{CALLED}org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme '
         '"s3"', f"org.apache.spark:spark-hadoop-cloud_2.13:{SPARK}"),
    ],
)  # fmt: skip
def test_the_package_to_add_is_named(said: str, package: str):
    sentence = sentence_of(RuntimeError(said))
    assert f"--conf spark.jars.packages={package}" in sentence
    assert f"Spark {SPARK} comes without" in sentence
    assert ("release made for" in sentence) == package.endswith("VERSION")


@pytest.mark.parametrize(
    "said",
    [
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delayed_queue. Make sure",
        f"{NO_CLASS}org.example.Missing not found",
        'No FileSystem for scheme "ftps"',
        "",
    ],
)
def test_what_else_is_missing_is_said_as_before(said: str):
    assert package_of(said) is None
