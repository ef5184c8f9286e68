"""The server commits, and its answer never arrives (Q27, Q33)."""

from __future__ import annotations

import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.exceptions import OutcomeUnknown, ResourceUnavailable
from delayed_queue.models import DeadLetter, Message
from tests.support.answers import stored
from tests.support.operations import CREATED, IGNORED, OPERATIONS, PAST, Scene
from tests.support.proxy import Proxy


@pytest.mark.parametrize(
    ("operation", "tag"),
    [
        ("acknowledge", "DELETE 1"),
        ("acknowledge a batch", "DELETE 1"),
        ("release", "UPDATE 1"),
        ("reject", "SELECT 1"),
        ("drop", "DELETE 1"),
        ("drop all", "SELECT 1"),
        ("redrive", "SELECT 1"),
    ],
)
def test_what_finds_nothing_the_second_time_says_that_it_does_not_know(
    queue: DelayedQueue, proxy: Proxy, operation: str, tag: str
):
    """Q27: never False, never silence."""
    call, _ = OPERATIONS[operation]
    scene = Scene.of(queue)
    proxy.swallow_answer(tag)

    with pytest.raises(OutcomeUnknown) as caught:
        call(scene)

    assert isinstance(caught.value, ResourceUnavailable)
    assert caught.value.__cause__ is not None
    assert proxy.swallowed_tag is None


def test_an_acknowledgement_whose_answer_was_swallowed_has_happened(
    queue: DelayedQueue, proxy: Proxy
):
    """Q27."""
    scene = Scene.of(queue)
    proxy.swallow_answer("DELETE 1")

    with pytest.raises(OutcomeUnknown):
        scene.batch[0].acknowledge()

    assert not queue.contains_message("leased")
    assert queue.contains_message("due")


def test_an_acknowledgement_that_never_arrived_is_made(queue: DelayedQueue, proxy: Proxy):
    """Q27: the connection was lost as well, but the second time there was something to delete."""
    scene = Scene.of(queue)
    proxy.cut()

    assert scene.batch[0].acknowledge() is True
    assert not queue.contains_message("leased")


def test_an_extension_whose_answer_was_swallowed_is_repeated(queue: DelayedQueue, proxy: Proxy):
    """Q33: twice is as good as once."""
    scene = Scene.of(queue)
    proxy.swallow_answer("UPDATE 1")

    assert scene.batch[0].extend() is True


def test_an_offer_whose_answer_was_swallowed_is_stored_once(queue: DelayedQueue, proxy: Proxy):
    """Q33: it is found, and was not there before."""
    proxy.swallow_answer("INSERT 0 1")

    assert queue.offer_if_not_exists("key", "payload") is CREATED

    assert proxy.answers.count("INSERT 0 1") == 1
    assert stored(queue, "key").payload == "payload"
    assert Message.objects.count() == 1


def test_a_batch_whose_answer_was_swallowed_is_stored_once(queue: DelayedQueue, proxy: Proxy):
    """Q33."""
    messages = [ScheduledMessage(f"key-{each}", each, PAST) for each in range(100)]
    proxy.swallow_answer("INSERT 0 100")

    assert queue.offer_batch(messages) == [IGNORED] * 100

    assert Message.objects.count() == 100


def test_a_redrive_whose_answer_was_swallowed_is_made_once(queue: DelayedQueue, proxy: Proxy):
    """Q29."""
    scene = Scene.of(queue)
    proxy.swallow_answer("SELECT 1")

    with pytest.raises(OutcomeUnknown):
        queue.redrive([scene.letter])

    assert queue.contains_message("dead")
    assert not DeadLetter.objects.exists()


def test_a_claim_whose_answer_was_swallowed_is_not_acknowledged_with_the_next_one(
    queue: DelayedQueue, proxy: Proxy
):
    """Q24: what was leased and never delivered must come back when that lease expires."""
    queue.offer_batch([ScheduledMessage(key, None, PAST) for key in ("lost", "second")])
    proxy.swallow_answer("UPDATE 1")

    batch = queue.try_poll_many(1)

    assert [envelope.key for envelope in batch] == ["second"]
    assert batch.acknowledge() == 1
    assert stored(queue, "lost").state == "leased"
    assert stored(queue, "lost").lease_id != batch.lease_id


def test_an_update_whose_answer_was_swallowed_is_stored_once(queue: DelayedQueue, proxy: Proxy):
    """Q33: an update to the same payload and schedule is none the second time."""
    assert queue.offer_or_update("key", "old", PAST) is CREATED
    proxy.swallow_answer("INSERT 0 1")

    assert queue.offer_or_update("key", "new", PAST) is IGNORED

    assert proxy.answers.count("INSERT 0 1") == 2
    assert stored(queue, "key").payload == "new"
