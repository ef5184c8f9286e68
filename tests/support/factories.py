"""The factories of the package, for tests that read rows."""

from __future__ import annotations

from delayed_queue.testing.factories import DeadLetterFactory, MessageFactory, from_now

__all__ = ["DeadLetterFactory", "MessageFactory", "from_now"]
