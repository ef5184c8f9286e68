"""Fixtures of the notification service."""

from __future__ import annotations

import pytest

from delayed_queue.notifications.catalogue import forget_templates


@pytest.fixture(autouse=True)
def no_cached_templates(request: pytest.FixtureRequest) -> None:
    """Clear cached templates of earlier tests, whose rows are gone."""
    if request.node.get_closest_marker("django_db"):
        request.getfixturevalue("db")
        forget_templates()
