"""The callbacks of all topics, as a source of handlers that workers ask."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from delayed_queue.codecs import codec_named
from delayed_queue.handlers import Handler
from delayed_queue.http.callbacks.delivery import deliverer
from delayed_queue.http.jobs.catalogue import kinds_of
from delayed_queue.http.jobs.kinds import OWN_SHARDS, Way
from delayed_queue.http.models import Topic
from delayed_queue.retries import RetryPolicy

PAGE: Final = 1000

# The ladder travels with the message, and the handler keeps to it; this one never runs out first.
_POLICY: Final = RetryPolicy((timedelta(seconds=15),), 2**31 - 1)


def handlers_of_topics(using: str) -> Iterator[Handler]:
    """Yield a handler for each shard of each topic's callbacks."""
    codec, after = codec_named("bytes"), ""
    while topics := Topic.objects.after(after, PAGE, using=using):
        for topic in topics:
            for shard, kind in enumerate(kinds_of(topic, Way.CALLBACK)):
                function = deliverer(
                    using, kind, topic.ladder, topic.jitter, has_one_host=shard < OWN_SHARDS
                )
                yield Handler(topic.name, function, codec, kind, _POLICY)
        if len(topics) < PAGE:
            return
        after = topics[-1].name
