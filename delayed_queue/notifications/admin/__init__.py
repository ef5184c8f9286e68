"""The pages of operators; importing this registers them."""

from __future__ import annotations

from delayed_queue.notifications.admin.notifications import NotificationAdmin
from delayed_queue.notifications.admin.parked import ParkedRequestAdmin
from delayed_queue.notifications.admin.suppressions import SuppressionAdmin
from delayed_queue.notifications.admin.templates import TemplateAdmin

__all__ = ["NotificationAdmin", "ParkedRequestAdmin", "SuppressionAdmin", "TemplateAdmin"]
