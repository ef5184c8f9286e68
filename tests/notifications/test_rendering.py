"""Hostile templates and contexts (N9): their limits and refusals."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from delayed_queue.notifications import intake
from delayed_queue.notifications.intake import Refused
from delayed_queue.notifications.models import Notification, Template
from delayed_queue.notifications.rendering import NotRenderable, Rendered, compiled
from tests.notifications.requests import template


def rendered(body: str, **context: Any) -> Rendered:
    return compiled(template(subject="Hello", html="", body=body)).render(context)


def test_n9_a_context_cannot_make_a_loop_fill_the_memory():
    body = "{% for each in lines %}{% for sign in text %}{{ text }}{% endfor %}{% endfor %}"
    tracemalloc.start()
    try:
        with pytest.raises(NotRenderable, match="characters"):
            rendered(body, lines=[1] * 5_000, text="x" * 20_000)  # 100 MB
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_n9_loops_that_write_nothing_come_to_an_end():
    """Without the limit, a request of 18 KB would cause nine million iterations."""
    inner = "{% for b in lines %}{% if a == 2 %}x{% endif %}{% endfor %}"
    body = f"{{% for a in lines %}}{inner}{{% endfor %}}"
    with pytest.raises(NotRenderable, match="characters"):
        rendered(body, lines=[1] * 3_000)


def test_n9_a_long_list_is_written_whole():
    body = "{% for line in lines %}{{ line.name }}: {{ line.price }}{% endfor %}"
    lines = [{"name": "Tea", "price": "1.00"}] * 5_000
    assert rendered(body, lines=lines).body == "Tea: 1.00" * 5_000


@pytest.mark.parametrize(
    ("given", "letters", "shown"),
    [
        ("2031-05-01", "j F Y", "1 May 2031"),
        ("2031-05-01T14:30:00+02:00", "j F Y H:i", "1 May 2031 14:30"),
        ("2031-05-01T23:30:00-08:00", "Y-m-d H:i", "2031-05-01 23:30"),
    ],
)
def test_n9_a_date_is_written_as_it_was_given(given: str, letters: str, shown: str):
    assert rendered(f"On {{{{ at|date:'{letters}' }}}}.", at=given).body == f"On {shown}."


@pytest.mark.parametrize(
    ("given", "letters"), [("tomorrow", "j F"), (20310501, "j F"), ("2031-05-01", "H:i")]
)
def test_n9_what_is_no_date_is_refused_and_not_left_out(given: Any, letters: str):
    with pytest.raises(NotRenderable):
        rendered(f"On {{{{ at|date:'{letters}' }}}}.", at=given)


@pytest.mark.django_db
@pytest.mark.parametrize("body", ["{% load static %}", "{{ name|safe }}", "{% if %}"])
def test_n1_a_stored_template_that_does_not_compile_is_an_error_of_the_request(body: str):
    """Written without the form, or before an upgrade."""
    Template.objects.create(name="broken", channel="sms", version=1, body=body)
    raw = {"channel": "sms", "to": "+40721234567", "template": "broken"}
    (answer,) = intake.accept([raw], tenant="shop")
    assert isinstance(answer, Refused)
    assert [each.path for each in answer.errors] == ["template"]
    assert not Notification.objects.exists()
