"""The pages of batches, and cancelling them (B12)."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Message, StoredBatch
from delayed_queue.queue.batches import MessageBatch
from tests.admin.support import MESSAGES, operator, page, post, told
from tests.support.factories import worker_row

pytestmark = pytest.mark.django_db

BATCHES = "/admin/delayed_queue/storedbatch/"


def started(*keys: str, on_dead: str = "then") -> MessageBatch:
    then = ScheduledMessage("report", {"day": "secret"})
    batch = DelayedQueue("rows").batch(then, then_queue=DelayedQueue("reports"), on_dead=on_dead)
    batch.offer_batch([ScheduledMessage(key, None) for key in keys])
    return batch


def detail(batch: MessageBatch) -> str:
    return f"{BATCHES}{batch.id}/change/"


def shown(client: Client, url: str) -> list[Any]:
    response = client.get(url)
    assert response.status_code == 200
    return list(response.context["cl"].result_list)


def test_b12_the_list_has_the_oldest_first_with_progress(admin_client: Client):
    first, second = started("a", "b"), started("c")
    envelope = DelayedQueue("rows").try_poll()
    assert envelope is not None
    envelope.acknowledge()
    second.close()

    one, other = shown(admin_client, BATCHES)
    assert (one.pk, one.done, one.left.value) == (first.id, 1, 1)
    assert (other.pk, other.left.value) == (second.id, 1)
    assert "secret" not in page(admin_client, BATCHES)


def left_by(batch: MessageBatch) -> None:
    """Let one member die, and one be leased by the worker web-1."""
    dead, held = DelayedQueue("rows").try_poll_many(2)
    dead.reject("no such row")
    worker_row("web-1", holder=held.lease_id[:8])


def test_b12_the_page_of_a_batch_says_who_is_left_and_why(admin_client: Client):
    batch, other = started("a", "b", "c", on_dead="wait"), started("d")
    left_by(batch)
    html = page(admin_client, detail(batch))
    assert all(words in html for words in ("no such row", "web-1"))
    link = f"{MESSAGES}?q=batch%3A{batch.id}"
    assert link in html
    assert [row.key for row in shown(admin_client, link)] == ["b", "c"]
    assert [row.key for row in shown(admin_client, f"{MESSAGES}?q=batch:{other.id}")] == ["d"]
    assert shown(admin_client, f"{MESSAGES}?q=batch:x") == []


def test_b12_members_are_shown_by_permission():
    batch = started("a", "b", "c", on_dead="wait")
    left_by(batch)
    html = page(operator("view_storedbatch"), detail(batch))
    assert "needs the permission delayed_queue.view_message" in html
    assert "?q=batch" not in html
    html = page(operator("view_storedbatch", "view_message"), detail(batch))
    assert "?q=batch" in html
    assert "web-1" not in html
    assert "no such row" not in html


def test_b12_cancelling_asks_first_and_leaves_the_members(admin_client: Client):
    batch = started("a")
    assert post(admin_client, BATCHES, "cancel", [str(batch.id)]).status_code == 200
    assert StoredBatch.objects.exists()
    response = post(admin_client, BATCHES, "cancel", [str(batch.id)], confirmed="yes")
    assert told(response) == [f"Cancelled 1 batch: #{batch.id}."]
    assert not StoredBatch.objects.exists()
    assert LogEntry.objects.get().object_id == str(batch.id)
    assert told(admin_client.get(detail(batch)))[-1].startswith("This batch no longer exists")
    assert Message.objects.get().key == "a"
    response = post(admin_client, BATCHES, "cancel", [str(batch.id)], confirmed="yes")
    assert told(response)[-1] == f"Skipped 1 batch, no longer there: id {batch.id}."


def test_b12_operations_need_a_permission():
    batch = started("a")
    client = operator("view_storedbatch")
    assert 'value="cancel"' not in page(client, detail(batch))
    assert post(client, BATCHES, "cancel", [str(batch.id)], confirmed="yes").status_code == 403
    client = operator("view_storedbatch", "operate_batch")
    post(client, BATCHES, "cancel", [str(batch.id)], confirmed="yes")
    assert not StoredBatch.objects.exists()
