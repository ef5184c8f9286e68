"""Providers: what hands a notification to a third party, and says what came of it."""

from __future__ import annotations

from delayed_queue.notifications.providers.base import Outcome, Provider, Verdict

__all__ = ["Outcome", "Provider", "Verdict"]
