"""Tokens: looked up while they are revoked, noted as used by many at once (J13)."""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg

from delayed_queue.http.models import ApiToken
from delayed_queue.http.store.callers import USE_TOKEN
from delayed_queue.http.tokens import create_token, find_grant, revoke_token
from tests.support.concurrency import calling, together, wait_until_blocked

REVOKE = """UPDATE delayed_queue_token SET "disabledAt" = 0"""


def test_a_revocation_that_commits_during_the_look_counts_from_the_next(
    queue: Any, other: psycopg.Connection[Any]
):
    """A look does not wait for an operator who has not committed."""
    token = create_token("a", verbs=["add"], topics=["*"])
    assert find_grant(token) is not None  # from here on it is not to be written
    with other.transaction():
        other.execute(REVOKE)
        assert find_grant(token) is not None
    assert find_grant(token) is None


def test_the_last_use_is_written_once(
    queue: Any, other: psycopg.Connection[Any], admin: psycopg.Connection[Any]
):
    create_token("a", verbs=["add"], topics=["*"])
    row = ApiToken.objects.get()
    params = {"id": row.id, "stale_after": 60_000, "now": None}
    with other.transaction():
        assert other.execute(USE_TOKEN, params).rowcount == 1
        with calling(partial(ApiToken.objects.mark_used, row.id, stale_after=60_000)) as second:
            wait_until_blocked(admin, second)
            other.execute("COMMIT; BEGIN")
            assert second.answer() is False


def test_of_ten_revocations_one_does_it(queue: Any):
    create_token("a", verbs=["add"], topics=["*"])
    assert sorted(together([partial(revoke_token, "a")] * 10)) == [False] * 9 + [True]
