"""The app of the pipeline: its tables, its command, its section of the settings."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from delayed_queue.conf import Rule, RuledSection, counts, optional, register_section, section
from delayed_queue.spark.settings import MASTERS, SparkSettings


def _is_master(value: Any) -> bool:
    return isinstance(value, str) and MASTERS.fullmatch(value) is not None


def _is_conf(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, str) for pair in value.items() for each in pair
    )


# Beside the class, which drivers without Django have, too.
_RULES = {
    "MASTER": optional(Rule(_is_master, "It must be local[…], spark://…, yarn or k8s://….")),
    "MAX_CONNECTIONS": counts(1, 10_000),
    "CONF": Rule(_is_conf, "It must be a dict of text by text."),
}
register_section("SPARK", RuledSection(SparkSettings, _RULES))


def spark_settings() -> SparkSettings:
    """Return the section in force."""
    found: SparkSettings = section("SPARK")
    return found


class SparkConfig(AppConfig):
    name = "delayed_queue.spark"
    label = "delayed_queue_spark"
    verbose_name = _("Delayed queue: Spark")
    default_auto_field = "django.db.models.BigAutoField"
