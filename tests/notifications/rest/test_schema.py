"""Generated requests from the description (N1): no 500, and no undocumented answer."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck
from hypothesis import settings as examples
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from delayed_queue.http.api.openapi import describe
from delayed_queue.http.tokens import VERBS, create_token
from delayed_queue.notifications.api import api


@schemathesis.serializer("application/x-ndjson")
def lines(context: Any, value: Any) -> bytes:
    """Send the generated array as lines."""
    each_of = value if isinstance(value, list) else [value]
    return "\n".join(json.dumps(each) for each in each_of).encode("utf-8", "replace")


# No check that good requests are accepted. A schema cannot express that a number belongs to its
# country, or that a template exists.
CHECKS: Final[Any] = [
    not_a_server_error, status_code_conformance, content_type_conformance,
    response_schema_conformance,
]  # fmt: skip
schema: Final = schemathesis.openapi.from_dict(describe(api, prefix="/v1/"))
schema.app = get_wsgi_application()


@schema.parametrize()
@examples(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_n1_no_made_up_request_gets_an_answer_that_is_not_described(case, token):
    case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=CHECKS)


@pytest.fixture
def token(transactional_db: None, settings: Any) -> str:
    settings.ALLOWED_HOSTS = ["localhost"]
    return create_token("schemathesis", verbs=VERBS, topics=["*"])
