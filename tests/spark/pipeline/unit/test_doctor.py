"""The findings of ``doctor``, without a JVM and without a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from delayed_queue.spark.pipeline import cli, doctor
from delayed_queue.spark.pipeline.cli import FAILED


class TestDoctor:
    @pytest.mark.parametrize(
        ("text", "release"),
        [('openjdk version "17.0.15" 2025', 17), ('java version "1.8.0_402"', 1),
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
        assert doctor.check_java().level == doctor.FAIL
        java.write_text("#!/bin/sh\nexit 1\n")
        assert "CalledProcessError" in doctor.check_java().found

    def test_packages_of_wrong_versions(self) -> None:
        assert (
            doctor.check_package("pyspark", (99, 0), None).advice == "pip install 'pyspark>=99.0'"
        )
        assert doctor.check_package("no-such-thing", (1, 0), None).found == "not installed"
        assert {each.level for each in doctor.check_packages()} == {doctor.OK}

    def test_executors_that_differ(self) -> None:
        here = {**doctor.look(), "host": "a", "database": None}
        assert [each.level for each in doctor.compare_executors(here, [here])] == [doctor.OK]
        other = {**here, "host": "b", "python": "3.9.1", "pyarrow": None, "database": "refused"}
        found = list(doctor.compare_executors(here, [here, other]))
        assert [each.level for each in found] == [doctor.FAIL] * 3
        assert "b cannot reach the database: refused" in found[2].found

    def test_without_a_database_it_says_so_and_starts_nothing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("DELAYED_QUEUE_DSN", "host=127.0.0.1 port=1 dbname=x password=geheim")
        assert cli.main(["doctor"]) == FAILED
        told = capsys.readouterr()
        assert "fail  database" in told.out
        assert "starting Spark" not in told.err
        assert "geheim" not in told.out + told.err
