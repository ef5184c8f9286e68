"""The pages of operators; importing this registers them."""

from __future__ import annotations

from delayed_queue.notifications.admin.kept import (
    ParkedRequestAdmin,
    SuppressionAdmin,
    TemplateAdmin,
)
from delayed_queue.notifications.admin.notifications import NotificationAdmin

__all__ = ["NotificationAdmin", "ParkedRequestAdmin", "SuppressionAdmin", "TemplateAdmin"]
