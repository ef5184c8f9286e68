"""The receivers' guide matches the requests that are sent."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from typing import Any

from delayed_queue.http.callbacks.calls import Failure, new_secret, sign
from tests.support import documents
from tests.support.documents import DOCS

GUIDE = DOCS / "guides/callbacks.md"
BODY = b'{"orderId": "4711", "name": "\xc3\xa9"}'


def snippet(language: str, having: str) -> str:
    [found] = [each.text for each in documents.blocks(GUIDE, language) if having in each.text]
    return found


def test_the_words_of_failures_are_those_of_the_code() -> None:
    rows = documents.table(GUIDE, "failure", "meaning", "ambiguous")
    assert [documents.code(row[0]) for row in rows] == [each.value for each in Failure]


def test_the_verification_in_python() -> None:
    namespace: dict[str, Any] = {}
    exec(snippet("python", "is_ours"), namespace)  # noqa: S102 # our own page
    is_ours = namespace["is_ours"]
    secret, old = new_secret(), new_secret()
    headers = sign([secret, old], "msg_1", int(time.time()), BODY)
    assert is_ours(secret, headers, BODY)
    assert is_ours(old, headers, BODY)
    assert not is_ours(new_secret(), headers, BODY)
    assert not is_ours(secret, headers, BODY + b" ")
    assert not is_ours(secret, sign([secret], "msg_1", int(time.time()) - 301, BODY), BODY)


def test_the_verification_in_javascript() -> None:
    node = shutil.which("node")
    secret, old = new_secret(), new_secret()
    headers = sign([secret, old], "msg_1", int(time.time()), BODY)
    asked = json.dumps([secret, old, new_secret()])
    program = snippet("javascript", "isOurs") + (
        f"const body = Buffer.from({json.dumps(BODY.decode())});"
        f"const answers = {asked}.map((each) => isOurs(each, {json.dumps(headers)}, body));"
        "console.log(JSON.stringify(answers));"
    )
    # Without Node the test still runs: it checks the snippet for its required parts.
    if node is None:
        assert "timingSafeEqual" in program
        return
    assert json.loads(subprocess.check_output([node, "-e", program])) == [True, True, False]
