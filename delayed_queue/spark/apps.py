"""The app of the pipeline: its tables, its command, its section of the settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from delayed_queue.conf import register_section, section
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.settings import SparkSettings


class _SparkSection:
    """``SparkSettings`` checks itself: drivers without Django have it, too."""

    def made(self, value: Any) -> SparkSettings:
        return SparkSettings.of(value)

    def wrongs(self, value: Any) -> Iterator[tuple[str, str]]:
        try:
            SparkSettings.of(value)
        except InvalidConfiguration as error:
            yield " cannot be used.", str(error)


register_section("SPARK", _SparkSection())


def spark_settings() -> SparkSettings:
    """Return the section in force."""
    found: SparkSettings = section("SPARK")
    return found


class SparkConfig(AppConfig):
    name = "delayed_queue.spark"
    label = "delayed_queue_spark"
    verbose_name = _("Delayed queue: Spark")
    default_auto_field = "django.db.models.BigAutoField"
