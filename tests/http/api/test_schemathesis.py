"""Made-up requests to the job API (J14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.http.api.described import check_described
from tests.http.api.servers import uvicorn

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def test_j14_no_server_error_and_no_undocumented_answer(tmp_path: Path):
    with uvicorn(POP_TIMEOUT=0.2) as server:
        check_described(server, "/queue/v1/openapi.json", tmp_path)
