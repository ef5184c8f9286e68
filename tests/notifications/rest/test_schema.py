"""Made-up requests to the notifications' API (N1)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.http.api.described import check_described
from tests.http.api.servers import uvicorn

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

# No check that requests are refused by their schema: an empty text is accepted for none.
CHECKS: Final = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance"
)


def test_n1_no_server_error_and_no_undocumented_answer(tmp_path: Path):
    with uvicorn(ROOT_URLCONF="example_project.urls") as server:
        check_described(server, "/v1/openapi.json", tmp_path, "--checks", CHECKS)
