"""The pipeline's settings: without a JVM and without a database."""

from __future__ import annotations

import pytest

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.pipeline.session import conf_of, master_of
from delayed_queue.spark.settings import SparkSettings


class TestSettings:
    def test_this_machine_takes_no_more_cores_than_connections(self) -> None:
        assert master_of(SparkSettings(MAX_CONNECTIONS=1)) == "local[1,4]"
        assert master_of(SparkSettings(MASTER="spark://a:7077")) == "spark://a:7077"

    def test_a_cluster_is_held_to_the_cap(self) -> None:
        sizes = {"spark.executor.instances": "4", "spark.executor.cores": "8"}
        conf = conf_of(SparkSettings(CONF=sizes), "spark://a:7077", is_verbose=True)
        limits = {"spark.cores.max": "32", "spark.dynamicAllocation.maxExecutors": "4"}
        assert limits.items() | sizes.items() <= conf.items()
        with pytest.raises(InvalidConfiguration, match="32 connections, more than"):
            conf_of(SparkSettings(MAX_CONNECTIONS=31, CONF=sizes), "yarn")

    @pytest.mark.parametrize("cores", ["0", "two", "-1", "1.5"])
    def test_a_size_that_is_no_number_is_named(self, cores: str) -> None:
        with pytest.raises(InvalidConfiguration, match=r"spark\.executor\.cores must be a whole"):
            conf_of(SparkSettings(CONF={"spark.executor.cores": cores}), "yarn")

    def test_one_executor_may_not_have_more_cores_than_connections(self) -> None:
        with pytest.raises(InvalidConfiguration, match="may open 40 connections"):
            conf_of(SparkSettings(CONF={"spark.executor.cores": "40"}), "yarn")

    def test_a_small_cluster_stays_small(self) -> None:
        sizes = {"spark.executor.instances": "2", "spark.executor.cores": "4"}
        conf = conf_of(SparkSettings(CONF=sizes), "spark://a:7077")
        limits = {"spark.cores.max": "8", "spark.dynamicAllocation.maxExecutors": "2"}
        assert limits.items() <= conf.items()
