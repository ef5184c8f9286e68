"""The page of failures: what is dead, by its cause."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter
from tests.factories import DeadLetterFactory, from_now
from tests.integration.admin_lists import keys_of
from tests.integration.admin_support import LETTERS, operator, page

FAILURES = f"{LETTERS}failures/"
pytestmark = pytest.mark.django_db


def test_failures_are_grouped_by_queue_and_cause_the_latest_first(admin_client: Client):
    DeadLetterFactory.create_batch(3, fingerprint="a" * 16, died_at=from_now(hours=-1))
    DeadLetterFactory.create_batch(2, fingerprint="b" * 16, reason="refused by 12", last_error=None)
    DeadLetterFactory.create(kind="other|json", fingerprint="a" * 16, died_at=from_now(days=-1))
    response = admin_client.get(FAILURES)
    lines = response.context["lines"]

    assert [(each.name.queue, each.count, each.title) for each in lines] == [
        ("orders", "2", "refused by #"),
        ("orders", "3", "attempts exhausted: ValueError · Traceback (most recent call last):"),
        ("other", "1", "attempts exhausted: ValueError · Traceback (most recent call last):"),
    ]
    listed = page(admin_client, f"{LETTERS}?{lines[1].query}")
    assert len(keys_of(listed)) == 3
    of_one_queue = admin_client.get(f"{FAILURES}?kind=other%7Cjson").context["lines"]
    assert [each.name.queue for each in of_one_queue] == ["other"]


def test_a_letter_has_its_fingerprint_from_its_death_on(admin_client: Client):
    queue = DelayedQueue("orders")
    for key in ("1", "2", "3"):
        queue.offer_or_update(key, {})
        envelope = queue.try_poll()
        assert envelope is not None
        assert envelope.reject(f"customer {key} is gone" if key != "3" else "refused")
    assert [each.count for each in admin_client.get(FAILURES).context["lines"]] == ["1", "2"]


def test_a_letter_of_another_program_has_a_group_too(admin_client: Client):
    with connection.cursor() as cursor:
        cursor.execute(
            'INSERT INTO delayed_queue_dead_letter ("pKind", "pKey", payload, attempts, reason, '
            '"scheduledAtInitially", "createdAt", "diedAt") VALUES '
            "('orders|json', 'a', '1', 1, 'no', 0, 0, 0)"
        )
    (line,) = admin_client.get(FAILURES).context["lines"]
    assert (line.row.fingerprint, line.title, line.count) == ("", "no", "1")
    assert len(keys_of(page(admin_client, f"{LETTERS}?{line.query}"))) == 1


def test_counts_stop_and_say_so():
    DeadLetterFactory.create_batch(3)
    (group,) = DeadLetter.objects.groups(cap=2)
    assert group.letters == 2


def test_it_needs_the_permission_to_see_dead_letters():
    assert operator().get(FAILURES).status_code == 403
    assert operator("view_deadletter", "view_message").get(FAILURES).status_code == 200


def test_a_failure_without_a_queue_is_no_server_error(admin_client: Client):
    assert admin_client.get(f"{LETTERS}?group=abc").status_code == 302
    assert "Nothing is dead" in page(admin_client, FAILURES)
