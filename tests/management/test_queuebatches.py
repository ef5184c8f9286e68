"""The command that lists, shows and cancels batches (B12)."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import StoredBatch
from delayed_queue.queue.batches import MessageBatch
from tests.support.factories import from_now, worker_row

pytestmark = pytest.mark.django_db

THEN = ScheduledMessage("report", {"day": 1})


def run(*arguments: object) -> str:
    out = StringIO()
    call_command("queuebatches", *map(str, arguments), stdout=out)
    return out.getvalue()


def facts(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--format", "json"))


def rows() -> DelayedQueue:
    return DelayedQueue("rows")


def started(*keys: str, on_dead: str = "then") -> MessageBatch:
    batch = rows().batch(THEN, then_queue=DelayedQueue("reports"), on_dead=on_dead)
    batch.offer_batch([ScheduledMessage(key, None) for key in keys])
    return batch


def lease(key: str) -> Any:
    envelope = rows().try_poll()
    assert envelope is not None
    assert envelope.key == key
    return envelope


def test_b12_the_list_has_the_progress_of_each_batch_the_oldest_first():
    first, second = started("a", "b"), started("c")
    lease("a").acknowledge()
    second.close()
    StoredBatch.objects.filter(pk=first.id).update(created_at=from_now(days=-1, hours=-2))

    one, other = facts("list")
    assert (one["id"], one["queue"], one["then_queue"]) == (first.id, "rows|json", "reports|json")
    assert (one["state"], one["done"], one["left"], one["left_is_cut"]) == ("open", 1, 1, False)
    assert one["age"].startswith("1 day, 2:00:0")
    assert (other["id"], other["state"], other["left"]) == (second.id, "closed", 1)
    (cut,) = facts("list", "--limit", 1)
    assert cut["id"] == first.id
    assert run("list").splitlines()[1].split()[:4] == [
        str(first.id), "rows|json", "reports|json", "report"
    ]  # fmt: skip


def test_b12_without_batches_the_list_is_a_sentence():
    assert run("list") == "No batch is unfinished.\n"
    assert facts("list") == []


def test_b12_one_batch_shows_the_members_left_and_why():
    batch = started("dead", "held", "due", on_dead="wait")
    batch.offer_or_update("later", None, schedule_at=from_now(days=1))
    lease("dead").reject("no such row")
    worker_row("web-1", holder=lease("held").lease_id[:8])

    found = facts("show", batch.id)
    why = {
        each["key"]: (each["state"], each["worker"], each["reason"]) for each in found["members"]
    }
    assert why == {
        "dead": ("dead", None, "no such row"), "held": ("leased", "web-1", None),
        "due": ("due", None, None), "later": ("scheduled", None, None),
    }  # fmt: skip
    assert found["left"] == 4
    assert [each["key"] for each in facts("show", batch.id, "--limit", 2)["members"]] == [
        "dead", "held"
    ]  # fmt: skip
    text = run("show", batch.id)
    assert "then_key    report\n" in text
    assert "no such row" in text


def test_b12_cancelling_drops_the_message_and_leaves_the_members():
    batch = started("a")
    assert "would be cancelled" in run("cancel", batch.id, "--dry-run")
    assert StoredBatch.objects.exists()
    assert facts("cancel", batch.id)["was_changed"]
    assert not StoredBatch.objects.exists()
    lease("a").acknowledge()
    assert not DelayedQueue("reports").contains_message("report")


@pytest.mark.parametrize("verb", ["show", "cancel"])
def test_b12_an_unknown_batch_is_an_error(verb: str):
    batch = started("a")
    batch.cancel()
    with pytest.raises(CommandError, match=f"There is no batch {batch.id}: it has fin") as caught:
        run(verb, batch.id)
    assert caught.value.returncode == 2
    for wrong in ("x", "0", "9" * 30):
        with pytest.raises(CommandError, match=f"'{wrong}' is not a number from 1"):
            run(verb, wrong)
