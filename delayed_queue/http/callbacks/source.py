"""The callbacks of all topics, as a source of handlers that workers ask."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Final

from delayed_queue.codecs import codec_named
from delayed_queue.handlers import Handler
from delayed_queue.http.callbacks.backlogs import passed_over
from delayed_queue.http.callbacks.delivery import deliverer
from delayed_queue.http.jobs.kinds import Way, kinds_of_topic
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
            for kind in kinds_of_topic(topic.name, topic.shards, Way.CALLBACK):
                function = deliverer(using, topic.name, kind, topic.ladder, topic.jitter)
                passes_over = partial(passed_over, using, kind)
                yield Handler(topic.name, function, codec, kind, _POLICY, passes_over=passes_over)
        if len(topics) < PAGE:
            return
        after = topics[-1].name
