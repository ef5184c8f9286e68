"""Templates that change while processes cache them (N9)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import transaction

from delayed_queue.notifications import catalogue, intake
from delayed_queue.notifications.catalogue import add_version
from delayed_queue.notifications.intake import Accepted, Refused
from delayed_queue.notifications.models import Notification, Template
from tests.notifications.requests import template

pytestmark = pytest.mark.django_db(transaction=True)

RAW = {"channel": "email", "to": "a@example.org", "template": "welcome", "context": {"name": "A"}}
ADD = """
INSERT INTO delayed_queue_notification_template
    (name, channel, version, subject, body, html, category)
VALUES ('welcome', 'email', %s, 'Hello', %s, '', '')
"""


def accept(*raws: Any) -> list[Accepted | Refused]:
    return intake.accept(raws, tenant="shop")


def sent(**values: Any) -> str:
    (answer,) = accept(RAW | values)
    assert isinstance(answer, Accepted), answer
    return Notification.objects.get(pk=answer.id).body


def test_n9_a_version_of_another_process_applies_once_the_cache_has_expired(other, monkeypatch):
    monkeypatch.setattr(catalogue, "CACHE_SECONDS", 0.0)
    other.execute(ADD, [1, "one"])
    assert sent() == "one"
    other.execute("BEGIN")
    other.execute(ADD, [2, "two"])
    assert sent() == "one"
    other.execute("COMMIT")
    assert (sent(), sent(templateVersion=1)) == ("two", "one")
    monkeypatch.setattr(catalogue, "CACHE_SECONDS", 60.0)
    assert sent() == "two"
    other.execute(ADD, [3, "three"])
    assert (sent(), sent(templateVersion=3)) == ("two", "three")


def test_n9_a_long_transaction_caches_no_template_longer(monkeypatch: pytest.MonkeyPatch):
    """The time of the cache is counted from the query, not from the commit."""
    clock = [1.0]
    monkeypatch.setattr(catalogue, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    add_version(template(body="one"))
    with transaction.atomic():
        assert sent() == "one"
        Template.objects.filter(version=1).update(body="two")
        clock[0] += catalogue.CACHE_SECONDS
    assert sent() == "two"


def test_n9_a_caller_that_commits_by_hand_can_use_templates():
    add_version(template(body="one"))
    transaction.set_autocommit(False)
    try:
        assert sent() == "one"
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert sent() == "one"


def test_n9_a_missing_template_is_looked_up_again(other, monkeypatch):
    monkeypatch.setattr(catalogue, "MISSING_SECONDS", 0.0)
    assert isinstance(accept(RAW)[0], Refused)
    other.execute(ADD, [1, "one"])
    assert sent() == "one"


def test_n9_this_process_forgets_a_template_that_changes():
    assert isinstance(accept(RAW)[0], Refused)
    for number in (1, 2):
        add_version(template(body=str(number)))
        assert sent() == str(number)
    Template.objects.all().delete()
    assert isinstance(accept(RAW)[0], Refused)


def test_n9_a_version_that_was_rolled_back_is_not_cached():
    with transaction.atomic():
        add_version(template(body="never"))
        assert sent() == "never"
        transaction.set_rollback(True)
    assert isinstance(accept(RAW)[0], Refused)
