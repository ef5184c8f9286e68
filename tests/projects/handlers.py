"""Handlers that reply with a message, for the offers of ``steps``."""

from __future__ import annotations

from django.conf import settings

from delayed_queue import DelayedQueue, Envelope, handler


def answer(envelope: Envelope) -> None:
    using = str(getattr(settings, "ALIAS", "default"))
    DelayedQueue("answers", using=using).offer_or_update(envelope.key, envelope.payload)


@handler("plain")
def handle(envelope: Envelope) -> None:
    answer(envelope)


@handler("transacted", transactional=True)
def handle_in_its_transaction(envelope: Envelope) -> None:
    answer(envelope)
