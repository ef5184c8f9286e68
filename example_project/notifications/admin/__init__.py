"""The pages of operators; importing this registers them."""

from __future__ import annotations

from example_project.notifications.admin.notifications import NotificationAdmin
from example_project.notifications.admin.parked import ParkedRequestAdmin
from example_project.notifications.admin.suppressions import SuppressionAdmin
from example_project.notifications.admin.templates import TemplateAdmin

__all__ = ["NotificationAdmin", "ParkedRequestAdmin", "SuppressionAdmin", "TemplateAdmin"]
