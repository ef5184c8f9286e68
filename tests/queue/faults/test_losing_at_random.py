"""Random offers, cut off at any moment: each version is handled at most once (Q33).

The referee records the calls and their answers, and counts the messages of a consumer. It takes a
few seconds in the everyday suite; ``make chaos`` runs twenty times as long.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.exceptions import OutcomeUnknown
from delayed_queue.models import Message
from tests.http.jobs.support import server_now
from tests.support.aiming import Stage
from tests.support.losing import Consumer, losing
from tests.support.programs import ROUNDS

KEYS: Final = ("a", "b", "c")
AHEAD: Final = 86_400_000
# Delay in seconds; None is at once, and a schedule in the past has a fixed instant.
offsets: Final = st.sampled_from([None, -3600, 3600, 1])


class Version:
    """A payload that is offered once, under a key, with a delay in seconds."""

    made = 0

    def __init__(self, key: str, offset: int | None) -> None:
        Version.made += 1
        self.key, self.offset, self.payload = key, offset, Version.made


def offered(queue: DelayedQueue, kind: str, versions: list[Version]) -> Any:
    if kind == "batch":
        return queue.offer_batch([_message(each) for each in versions])
    one = versions[0]
    offer = queue.offer_or_update if kind == "update" else queue.offer_if_not_exists
    if kind == "delay":
        return queue.offer_or_update(one.key, one.payload, delay=_span(one))
    return offer(one.key, one.payload, _message(one).schedule_at)


def _span(version: Version) -> timedelta:
    return timedelta(seconds=max(version.offset or 0, 0))


def _message(version: Version) -> ScheduledMessage:
    offset = version.offset
    due = None if offset is None else server_now() + timedelta(seconds=offset)
    return ScheduledMessage(version.key, version.payload, due)


@st.composite
def offers(draw: st.DrawFn) -> tuple[str, list[Version]]:
    kind = draw(st.sampled_from(["update", "insert", "delay", "batch"]))
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True))
    return kind, [Version(key, draw(offsets)) for key in keys]


@settings(
    max_examples=25 * len(ROUNDS),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    found=offers(),
    before=st.lists(st.sampled_from(KEYS), max_size=2, unique=True),
    # The most dangerous offer is the most frequent.
    stage=st.sampled_from([*Stage, Stage.COMMITTED]),
    is_handled=st.sampled_from([True, True, False]),
)
def test_q33_each_version_is_handled_at_most_once(
    queue, proxy, other, found, before, stage, is_handled
):
    """Exactly once, if the call was answered and no offer has replaced it."""
    Message.objects.all().delete()
    kind, versions = found
    versions = versions if kind == "batch" else versions[:1]
    consumer = Consumer(other, queue.kind)
    for key in before:
        queue.offer_or_update(key, 0, delay=timedelta(hours=2))

    meanwhile = consumer.drain if is_handled else lambda: None
    try:
        losing(proxy, lambda: offered(queue, kind, versions), meanwhile, stage=stage)
        is_answered = True
    except OutcomeUnknown:
        is_answered = False
    consumer.drain(AHEAD)

    handled = Counter(consumer.payloads)
    for each in versions:
        assert handled[each.payload] <= 1
        if is_answered:
            assert handled[each.payload] == (kind != "insert" or each.key not in before)
    assert all(consumer.handled[key] >= 1 for key in before)
