"""What ``doctor`` finds: without a JVM and without a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from delayed_queue.spark.pipeline import cli, doctor
from delayed_queue.spark.pipeline.cli import (
    FAILED,
)
from delayed_queue.spark.settings import SparkSettings


class TestDoctor:
    @pytest.mark.parametrize(
        ("text", "release"),
        [('openjdk version "17.0.15" 2025', 17), ('java version "1.8.0_402"', 8),
         ('openjdk version "25" 2025', 25), ('openjdk version "21-ea"', 21), ("moo", 0)],
    )  # fmt: skip
    def test_releases_of_java(self, text: str, release: int) -> None:
        assert doctor.java_release(text) == release

    def test_java_that_does_not_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text("#!/bin/sh\necho 'java version \"1.8.0\"' >&2\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert doctor.java().level == doctor.FAIL
        java.write_text("#!/bin/sh\nexit 1\n")
        assert "CalledProcessError" in doctor.java().found

    def test_packages_of_wrong_versions(self) -> None:
        assert doctor.package("pyspark", (99, 0), None).advice == "pip install 'pyspark>=99.0'"
        assert doctor.package("no-such-thing", (1, 0), None).found == "not installed"
        assert {each.level for each in doctor.packages()} == {doctor.OK}

    def test_executors_that_differ(self) -> None:
        here = {**doctor.look_here(), "host": "a", "database": None, "ahead": 5}
        assert [each.level for each in doctor.executors([here])] == [doctor.OK] * 2
        other = {**here, "host": "b", "python": "3.9.1", "pyarrow": None, "database": "refused"}
        other["ahead"] = None
        found = list(doctor.executors([here, other]))
        assert [each.level for each in found] == [doctor.FAIL] * 3 + [doctor.OK]
        assert "b cannot reach the database: refused" in found[2].found

    @pytest.mark.parametrize(
        ("ahead", "level", "found"),
        [({"a": 3, "b": -1000}, doctor.OK, "within 1.00 s of the database's"),
         ({"a": 3, "b": -90_000}, doctor.WARN, "b is 1.5 min behind the database"),
         ({"a": 1500}, doctor.WARN, "a is 1.50 s ahead of the database")],
    )  # fmt: skip
    def test_clocks(self, ahead: dict[str, int], level: str, found: str) -> None:
        said = doctor.clock(ahead)
        assert (said.level, said.found) == (level, found)

    def test_the_library_of_the_driver(self) -> None:
        assert doctor.libpq().level == doctor.OK
        assert doctor.libpq().found.split(".")[0].isdecimal()

    def test_a_spark_of_another_version(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert [each.level for each in doctor.jars(SparkSettings())] == [doctor.OK]
        monkeypatch.setenv("SPARK_HOME", str(tmp_path))
        [none] = doctor.jars(SparkSettings())
        assert (none.level, none.found) == (doctor.FAIL, f"{tmp_path} has none of Spark")
        (tmp_path / "jars").mkdir()
        (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
        [old] = doctor.jars(SparkSettings())
        assert old.level == doctor.FAIL
        assert "is Spark 3.5.1, and PySpark" in old.found

    def test_a_jar_that_is_not_there(self, tmp_path: Path) -> None:
        (tmp_path / "there.jar").touch()
        given = f"{tmp_path}/there.jar,{tmp_path}/not.jar,s3a://jars/unknown.jar"
        found = list(doctor.jars(SparkSettings(CONF={"spark.jars": given})))
        assert [each.level for each in found] == [doctor.OK, doctor.FAIL]
        assert found[-1].found.endswith("not.jar")

    def test_the_sum_of_connections(self) -> None:
        settings = SparkSettings(MAX_CONNECTIONS=10)
        assert doctor.connections(4, settings, (100, 20)).level == doctor.OK
        assert doctor.connections(40, settings, (100, 20)).level == doctor.WARN
        found = doctor.connections(40, settings, (50, 20))
        assert (found.level, found.found) == (doctor.FAIL, "43 of a command, 20 in use, 50 in all")

    def test_a_database_that_went_away_is_no_fault_of_spark(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DELAYED_QUEUE_DSN", "host=127.0.0.1 port=1 dbname=x password=geheim")
        found = doctor.room(4, SparkSettings())
        assert (found.level, found.subject) == (doctor.FAIL, "connections")
        assert "geheim" not in found.found

    def test_without_a_database_it_says_so_and_starts_nothing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("DELAYED_QUEUE_DSN", "host=127.0.0.1 port=1 dbname=x password=geheim")
        assert cli.main(["doctor"]) == FAILED
        told = capsys.readouterr()
        assert "fail  database" in told.out
        assert "starting Spark" not in told.err
        assert "geheim" not in told.out + told.err
