"""Where the jobs of a topic are stored: one kind for each shard and each way of delivery."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple
from zlib import crc32

from delayed_queue.exceptions import InvalidMessage

# The kind on whose channel it is announced that topics came or changed; none is stored under it.
WAKE_CHANNEL: Final = "delayed_queue.http.jobs|wake"
MAX_TOPIC_LENGTH: Final = 80
MAX_SHARDS: Final = 64

# ASCII letters, digits and ``. _ : -``, the first one a letter, a digit or ``_``: safe in a path,
# and free of the ``#`` and ``|`` that the kind is built with.
TOPIC_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9._:-]*"
_TOPIC: Final = re.compile(TOPIC_PATTERN, re.ASCII)
_KIND: Final = re.compile(
    rf"(?P<topic>{TOPIC_PATTERN})(?:#(?P<shard>[1-9][0-9]?))?\|(?P<way>json|callback)", re.ASCII
)


class Way(StrEnum):
    """How a job is delivered: handed to who pops it, or sent to its url."""

    PULLED = "json"
    CALLBACK = "callback"


class TopicKind(NamedTuple):
    """A kind in the words of the HTTP side."""

    topic: str
    shard: int
    way: Way


def check_topic(name: str) -> str:
    """Return the topic's name, or refuse one that no kind can be made of."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_TOPIC_LENGTH:
        raise InvalidMessage(f"A topic is named by 1 to {MAX_TOPIC_LENGTH} characters.")
    if _TOPIC.fullmatch(name) is None:
        raise InvalidMessage(
            f"The topic {name!r} has other characters than ASCII letters, digits, '.', '_', ':' "
            "and '-', or begins with one of the last four but '_'."
        )
    return name


def shard_of(job_id: str, shards: int) -> int:
    """Return the shard of a job: the same in every process, and in every language with a CRC-32."""
    return crc32(job_id.encode()) % shards


def topic_kind(topic: str, shard: int = 0, way: Way = Way.PULLED) -> str:
    """Return the kind of a shard; shard 0 of pulled jobs is that of ``DelayedQueue(topic)``."""
    return f"{topic}#{shard}|{way}" if shard else f"{topic}|{way}"


def kind_of_job(topic: str, job_id: str, shards: int, way: Way) -> str:
    """Return the kind in which a new job is stored."""
    return topic_kind(topic, shard_of(job_id, shards), way)


def kinds_of_topic(topic: str, shards: int, *ways: Way) -> list[str]:
    """Return the kinds of a topic, of all ways or the given ones, shard after shard."""
    return [
        topic_kind(topic, shard, way)
        for way in ways or (Way.PULLED, Way.CALLBACK)
        for shard in range(shards)
    ]


def parse_kind(kind: str) -> TopicKind | None:
    """Return the topic, shard and way of a kind; None when it is not one of a topic."""
    match = _KIND.fullmatch(kind)
    if match is None or len(match["topic"]) > MAX_TOPIC_LENGTH:
        return None
    shard = int(match["shard"] or 0)
    return TopicKind(match["topic"], shard, Way(match["way"])) if shard < MAX_SHARDS else None


def topics_in(kinds: list[str]) -> Iterator[str]:
    """Yield the topic of each kind that is one of a topic, once."""
    found = (parse_kind(kind) for kind in kinds)
    yield from dict.fromkeys(each.topic for each in found if each is not None)
