"""The commands of the guides, against a server."""

from __future__ import annotations

import os
import subprocess

import pytest

from delayed_queue.http.tokens import VERBS, create_token
from tests.http.api.servers import uvicorn
from tests.support import documents
from tests.support.documents import DOCS

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
GUIDES = [DOCS / f"guides/rest-{name}.md" for name in ("api", "topics")]

# Fail at the first error response, and print it.
PRELUDE = """
set -euo pipefail
curl() { command curl --silent --show-error --fail-with-body "$@"; }
AUTH="Authorization: Bearer $TOKEN"
JSON="Content-Type: application/json"
"""


def test_every_command_of_the_guide_works() -> None:
    blocks = [block.text for page in GUIDES for block in documents.blocks(page, "shell")]
    assert sum(text.count("curl ") for text in blocks) > 20
    token = create_token("guide", verbs=VERBS, topics=["*"])
    with uvicorn() as server:
        done = subprocess.run(
            ["/bin/bash", "-c", "\n".join([PRELUDE, *blocks])],
            env={**os.environ, "QUEUE": f"{server.url}/queue/v1", "TOKEN": token},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert '{"kicked":1}' in done.stdout
    assert '"code":"invalid_request"' in done.stdout  # an item of the bulk, on purpose
