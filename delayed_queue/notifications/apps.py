"""The app of the notification service."""

from __future__ import annotations

from django.apps import AppConfig

import delayed_queue.notifications.conf  # noqa: F401 - makes the section of the settings known


class NotificationsConfig(AppConfig):
    name = "delayed_queue.notifications"
    label = "delayed_queue_notifications"
    verbose_name = "Delayed queue: notifications"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks."""
        from delayed_queue.notifications import checks  # noqa: F401 - registers by import
