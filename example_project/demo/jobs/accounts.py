"""What an operator sets up before others may use the job API: tokens, endpoints, clean topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.db import transaction

from delayed_queue.models import (
    ApiToken,
    CallbackAttempt,
    DeadLetter,
    Endpoint,
    Host,
    Message,
    Topic,
)
from delayed_queue.tokens import VERBS, create_token
from delayed_queue.topics import forget_topics
from delayed_queue.topics.kinds import MAX_SHARDS, kinds_of_topic
from example_project.demo.processes import Children

CLIENT: Final = "demo"
LOOPBACK: Final = "http://127.0.0.1"


@transaction.atomic
def clear(topics: Sequence[str]) -> None:
    """Delete the topics with their jobs and attempts, and what an earlier run set up."""
    kinds = [kind for topic in topics for kind in kinds_of_topic(topic, MAX_SHARDS)]
    Message.objects.filter(kind__in=kinds).delete()
    DeadLetter.objects.filter(kind__in=kinds).delete()
    CallbackAttempt.objects.filter(topic__in=topics).delete()
    Topic.objects.filter(name__in=topics).delete()
    ApiToken.objects.filter(name=CLIENT).delete()
    Endpoint.objects.filter(origin__startswith=f"{LOOPBACK}:").delete()
    Host.objects.filter(name__startswith="127.0.0.1:").delete()
    forget_topics()


def set_up_token(topics: Sequence[str]) -> str:
    """Return a token that may do everything to these topics, and nothing to others."""
    return create_token(CLIENT, verbs=VERBS, topics=topics)


def set_up_endpoint(children: Children, url: str) -> str:
    """Register the url and return its secret, for the receiver to verify by.

    In a process that may call it: this one's own settings allow no private address.
    """
    return children.output("queueendpoint", "add", url).split()[-1]
