"""Segments of an SMS (N17)."""

from __future__ import annotations

import pytest

from delayed_queue.notifications.intake import Accepted, accept
from delayed_queue.notifications.models import Notification
from delayed_queue.notifications.segments import segments_of
from tests.notifications.configured import configure
from tests.notifications.requests import email, sms
from tests.notifications.test_validation import errors


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("", 1), ("a" * 160, 1), ("a" * 161, 2), ("a" * 306, 2), ("a" * 307, 3),
        ("é\nÄ¤" * 40, 1), ("€" * 80, 1), ("€" * 81, 2),
        # An escape is not split from its character: 152 septets, then the rest.
        ("a" * 152 + "€" * 5, 2), ("a" * 152 + "€" + "a" * 152, 3),
        ("a" * 153 + "€" + "a" * 151, 2),
        ("ё" * 70, 1), ("ё" * 71, 2), ("ё" * 134, 2), ("ё" * 135, 3),
        ("ç", 1), ("`" + "a" * 70, 2), ("\u2019" + "a" * 69, 1),
        # A surrogate pair is not split: 66 units, then the rest.
        ("😀" * 35, 1), ("😀" * 36, 2), ("😀" * 66, 2), ("😀" * 67, 3),
        ("ё" * 66 + "😀" + "ё" * 65, 2), ("ё" * 66 + "😀" + "ё" * 66, 3),
    ],
)  # fmt: skip
def test_n17_segments_are_counted_as_networks_do(text: str, segments: int):
    assert segments_of(text) == segments


@pytest.mark.django_db
def test_n17_the_reply_has_the_number_and_a_refusal_names_it(settings):
    configure(settings, {"SMS_SEGMENTS": 2})
    requests = [sms(body="a" * 161, dedupeKey="k"), sms(dedupeKey="k"), email()]
    found = accept(requests, tenant="shop")
    assert [each.segments for each in found if isinstance(each, Accepted)] == [2, 0, 0]
    (refused,) = errors(sms(body="ё" * 200))
    assert (refused.path, refused.message) == ("body", "has 3 segments; an SMS has at most 2")
    assert Notification.objects.count() == 2
