"""The pipeline's settings: without a JVM and without a database."""

from __future__ import annotations

from typing import Any

import pytest

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.pipeline.session import conf_of, master_of
from delayed_queue.spark.settings import SparkSettings


class TestSettings:
    def test_what_is_right(self) -> None:
        settings = SparkSettings.of({"MASTER": "yarn", "EXECUTORS": 4, "CORES": 2, "MEMORY": "2g"})
        assert SparkSettings.of(settings) is settings

    @pytest.mark.parametrize(
        ("configured", "said"),
        [
            ({"MASTR": "yarn"}, "Did you mean 'MASTER'"),
            ({"MASTER": "moon"}, "MASTER"),
            ({"CORES": 0}, "CORES"),
            ({"MEMORY": "lots"}, "MEMORY"),
            ({"MAX_CONNECTIONS": None}, "MAX_CONNECTIONS"),
            ({"CONF": {"a": 1}}, "CONF"),
            ([], "must be a dict"),
        ],
    )
    def test_what_is_wrong(self, configured: Any, said: str) -> None:
        with pytest.raises(InvalidConfiguration, match=said):
            SparkSettings.of(configured)

    def test_this_machine_takes_no_more_cores_than_connections(self) -> None:
        assert master_of(SparkSettings(CORES=8, MAX_CONNECTIONS=3)) == "local[3,4]"
        assert master_of(SparkSettings(MASTER="spark://a:7077")) == "spark://a:7077"

    def test_a_cluster_is_held_to_the_cap(self) -> None:
        settings = SparkSettings(EXECUTORS=4, CORES=2, MEMORY="1g", CONF={"spark.x": "y"})
        conf = conf_of(settings, "spark://a:7077", is_verbose=True)
        assert conf["spark.cores.max"] == "8"
        assert conf["spark.executor.memory"] == "1g"
        assert conf["spark.x"] == "y"
        with pytest.raises(InvalidConfiguration, match="40 connections"):
            conf_of(SparkSettings(EXECUTORS=20, CORES=2), "yarn")
