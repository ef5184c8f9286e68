"""Jobs with a url are accepted, and each test starts with empty topic caches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import override_settings

from delayed_queue.http.jobs.catalogue import forget_topics
from delayed_queue.http.jobs.consuming import limited_topic


@pytest.fixture(autouse=True)
def callbacks_on() -> Iterator[None]:
    section = settings.DELAYED_QUEUE["CALLBACKS"]
    keys = settings.DELAYED_QUEUE | {"CALLBACKS": {**section, "ENABLED": True}}
    with override_settings(DELAYED_QUEUE=keys):
        yield


@pytest.fixture(autouse=True)
def unknown_topics() -> Iterator[None]:
    forget_topics()
    limited_topic.cache_clear()
    yield
    forget_topics()
