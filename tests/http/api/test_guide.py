"""The guide's commands and its client, against a server."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from delayed_queue.http.jobs.adding import find_job
from delayed_queue.http.tokens import VERBS, create_token
from tests.http.api.servers import uvicorn
from tests.support import documents
from tests.support.documents import DOCS

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
GUIDES = [DOCS / f"guides/rest-{name}.md" for name in ("api", "topics", "client")]

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


def test_the_client_of_the_guide_adds_consumes_gives_back_and_deletes() -> None:
    blocks = [block for page in GUIDES for block in documents.blocks(page, "python")]
    (block,) = [each for each in blocks if "class Jobs" in each.text]
    for each in blocks:
        exec(each.text, {})  # noqa: S102 - how topics are configured, among them
    assert len(block.text.splitlines()) <= 60
    names: dict[str, Any] = {}
    exec(block.text, names)  # noqa: S102 - our own page
    token = create_token("guide", verbs=VERBS, topics=["*"])
    with uvicorn() as server:
        jobs = names["Jobs"](f"{server.url}/queue/v1/", token, "orders")
        assert jobs.add("ü 1", 1)[0] == 202
        assert jobs.add("ü 1")[0] == 409
        assert jobs.add("b", 2)[0] == 202
        handled = []

        def handle(body: Any) -> None:
            handled.append(body)
            if len(handled) == 2:
                raise ArithmeticError

        with pytest.raises(ArithmeticError):
            jobs.consume(handle)
        # The page gives the topic four shards, and a pop starts at any: either may be first.
        assert sorted(handled) == [1, 2]
        finished, given_back = ["ü 1", "b"] if handled == [1, 2] else ["b", "ü 1"]
        assert find_job("orders", finished) is None
        assert jobs.call("GET", jobs.path(given_back))[1]["retry"] == 1
        assert jobs.delete(given_back)
        assert not jobs.delete(given_back)
