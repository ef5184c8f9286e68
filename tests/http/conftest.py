"""Jobs with a url are accepted, as where workers send callbacks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import override_settings


@pytest.fixture(autouse=True)
def callbacks_on() -> Iterator[None]:
    section = settings.DELAYED_QUEUE["CALLBACKS"]
    keys = settings.DELAYED_QUEUE | {"CALLBACKS": {**section, "ENABLED": True}}
    with override_settings(DELAYED_QUEUE=keys):
        yield
