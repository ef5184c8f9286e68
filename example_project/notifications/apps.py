"""The app of the notification service."""

from __future__ import annotations

from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    name = "example_project.notifications"
    label = "notifications"
    default_auto_field = "django.db.models.BigAutoField"
