"""Requests made up from the description (N1): never 500, never a status it does not name."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck, settings
from schemathesis.checks import CheckFunction

from delayed_queue.tokens import VERBS, create_token
from example_project.notifications.api import api
