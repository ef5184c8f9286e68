"""Templates that change while processes remember them (N9): who asks after a commit gets it."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import transaction

from delayed_queue.notifications import intake
from delayed_queue.notifications.catalogue import RememberedTemplates, add_version
from delayed_queue.notifications.intake import Accepted, Refused
from delayed_queue.notifications.models import Notification, Source, Template
from tests.notifications.requests import email, template
from tests.support.concurrency import calling, together, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

RAW = {"channel": "email", "to": "a@example.org", "template": "welcome", "context": {"name": "A"}}
ADD = """
INSERT INTO delayed_queue_notification_template
    (name, channel, version, subject, body, html, category)
VALUES ('welcome', 'email', %s, 'Hello', %s, '', '')
"""


def accept(*raws: Any) -> list[Accepted | Refused]:
    return intake.accept(raws, tenant="shop", source=Source.REST)


def body_of(answer: Accepted | Refused) -> str:
    assert isinstance(answer, Accepted), answer
    return Notification.objects.get(pk=answer.id).body


def sent(**values: Any) -> str:
    (answer,) = accept(RAW | values)
    return body_of(answer)


@pytest.fixture
def remembered(transactional_db: None) -> None:
    """A template that this process has used, and takes on trust."""
    add_version(template(body="one"))
    assert sent() == "one"
    trusted = RememberedTemplates()
    assert trusted.find("email", "welcome", None) is not None
    assert trusted.confirmation() is not None


@pytest.mark.usefixtures("remembered")
class TestOfAnotherProcess:
    """``other`` is its connection: nothing tells this process."""

    def test_n9_a_new_version_counts_at_once(self, other: psycopg.Connection[Any]):
        other.execute(ADD, [2, "two"])
        assert (sent(), sent(), sent(templateVersion=1)) == ("two", "two", "one")

    def test_n9_it_counts_in_a_caller_s_transaction(self, other: psycopg.Connection[Any]):
        with transaction.atomic():
            Template.objects.exists()
            other.execute(ADD, [2, "two"])
            (answer,) = accept(RAW)
        assert body_of(answer) == "two"

    def test_n9_it_counts_for_all_of_a_batch(self, other: psycopg.Connection[Any]):
        other.execute(ADD, [2, "two"])
        answers = accept(RAW | {"dedupeKey": "a"}, email(), RAW | {"dedupeKey": "a"})
        assert [body_of(each) for each in answers] == ["two", "Hello, Ada.", "two"]

    def test_n9_a_version_that_is_not_committed_does_not(self, other: psycopg.Connection[Any]):
        other.execute("BEGIN")
        other.execute(ADD, [2, "two"])
        assert sent() == "one"
        other.execute("COMMIT")
        assert sent() == "two"

    def test_n9_nobody_is_refused_by_the_one_before(self, other: psycopg.Connection[Any]):
        other.execute(ADD, [2, "needs {{ nothing|join:'' }}"])
        assert isinstance(accept(RAW)[0], Refused)
        other.execute(ADD, [3, "three"])
        assert sent() == "three"

    @pytest.mark.parametrize("version", [None, 1])
    def test_n9_one_edited_by_hand_is_seen_and_a_deleted_one_gone(
        self, other: psycopg.Connection[Any], version: int | None
    ):
        named = {} if version is None else {"templateVersion": version}
        assert sent(**named) == "one"
        other.execute("UPDATE delayed_queue_notification_template SET body = 'mended'")
        assert sent(**named) == "mended"
        other.execute("DELETE FROM delayed_queue_notification_template")
        (answer,) = accept(RAW | named)
        assert isinstance(answer, Refused)

    def test_n9_what_began_before_a_version_leaves_no_row_of_two(
        self, other: psycopg.Connection[Any], admin: psycopg.Connection[Any]
    ):
        """It waits for a key behind its confirmation; the next, after the commit, gets the new."""
        other.execute("BEGIN")
        other.execute(
            intake.CLAIM_KEYS,
            {"tenant": "shop", "keys": ["key:a"], "ids": [Notification.objects.get().pk],
             "window": "1 hour"},
        )  # fmt: skip
        with calling(partial(accept, RAW | {"dedupeKey": "a"})) as first:
            wait_until_blocked(admin, first)
            other.execute(ADD, [2, "two"])
            other.execute("ROLLBACK")
            (answer,) = first.answer()
        assert body_of(answer) == "one"


def test_n9_what_was_rolled_back_is_remembered_by_nobody():
    with transaction.atomic():
        add_version(template(body="never"))
        assert sent() == "never"
        transaction.set_rollback(True)
    assert isinstance(accept(RAW)[0], Refused)


def test_n9_nobody_who_asks_after_a_version_was_added_gets_an_older_one():
    add_version(template(body="1"))
    done, added = threading.Event(), [1]

    def edit() -> list[bool]:
        for _ in range(30):
            added[0] = max(added[0], add_version(template(body="x")).version)
        done.set()
        return []

    def ask() -> list[bool]:
        found = []
        while not done.is_set():
            least = added[0]
            (answer,) = accept(RAW)
            assert isinstance(answer, Accepted)
            version = Notification.objects.get(pk=answer.id).template_version
            found.append(version is not None and version >= least)
        return found

    answers = together([edit, ask, ask, ask])
    assert all(all(each) for each in answers)
    assert all(answers[1:])
