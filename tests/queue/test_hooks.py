"""Hooks of apps: each is set by one app."""

from __future__ import annotations

import pytest

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.queue.hooks import Hooks, KindFamily


def test_a_second_app_cannot_replace_a_hook():
    hooks = Hooks()
    family = KindFamily("^t-(.*)$", "^$")
    hooks.kind_family = family
    hooks.kind_family = family  # AppConfig.ready() may run again

    with pytest.raises(InvalidConfiguration, match="kind_family"):
        hooks.kind_family = KindFamily("^other-(.*)$", "^$")

    assert hooks.kind_family is family
