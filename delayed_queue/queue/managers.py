"""The managers of the queue's tables: ``Message.objects`` is made of the stores."""

from __future__ import annotations

from typing import TypeVar

from django.db import models

from delayed_queue.queue.store.claim import ClaimStore
from delayed_queue.queue.store.consume import ConsumeStore
from delayed_queue.queue.store.inspect import InspectStore
from delayed_queue.queue.store.offer import OfferStore
from delayed_queue.queue.store.settle import SettleStore

M = TypeVar("M", bound=models.Model)


class MessageManager(
    OfferStore, ClaimStore, ConsumeStore, SettleStore, InspectStore, models.Manager[M]
):
    """The queue's statements. ``kind`` names the queue, ``using`` the database alias.

    Instants and durations are integer milliseconds; ``now=None`` is the database's clock.
    Methods neither retry nor open transactions: that is the queue's business.
    """
