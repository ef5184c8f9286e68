"""The app of the pipeline: its tables, its command, its section of the settings."""

from __future__ import annotations

from django.apps import AppConfig

from delayed_queue.spark import conf  # noqa: F401 - registers the section SPARK


class SparkConfig(AppConfig):
    name = "delayed_queue.spark"
    label = "delayed_queue_spark"
    verbose_name = "Delayed queue: Spark"
    default_auto_field = "django.db.models.BigAutoField"
