"""Tokens: read while they are revoked (J13)."""

from __future__ import annotations

from functools import partial
from typing import Any

from delayed_queue.http.tokens import create_token, find_grant, revoke_token
from tests.support.concurrency import together

REVOKE = """UPDATE delayed_queue_token SET "disabledAt" = 0"""


def test_a_revocation_that_commits_during_the_look_counts_from_the_next(queue, other):
    """A read does not wait for an operator's open transaction."""
    token = create_token("a", verbs=["add"], topics=["*"])
    assert find_grant(token) is not None  # must not be written from here on
    with other.transaction():
        other.execute(REVOKE)
        assert find_grant(token) is not None
    assert find_grant(token) is None


def test_of_ten_revocations_one_does_it(queue: Any):
    create_token("a", verbs=["add"], topics=["*"])
    assert sorted(together([partial(revoke_token, "a")] * 10)) == [False] * 9 + [True]
