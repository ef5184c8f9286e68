"""The kinds in which jobs are stored: pulled ones by id, callbacks by host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from zlib import crc32

from delayed_queue.exceptions import CallbacksOff, InvalidMessage
from delayed_queue.http.conf import callback_settings

# Its channel announces new and changed topics; no message has this kind.
WAKE_CHANNEL: Final = "delayed_queue.http.jobs|wake"
MAX_TOPIC_LENGTH: Final = 80
MAX_SHARDS: Final = 64
# Number of hosts that have a shard of a topic's callbacks each; later hosts share the others.
OWN_SHARDS: Final = 32
MAX_HOST_LENGTH: Final = 261

# ASCII letters, digits and ``. _ : -``, the first one a letter, a digit or ``_``: safe in a path,
# and free of the ``#`` and ``|`` that the kind is built with.
TOPIC_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9._:-]*"
_TOPIC: Final = re.compile(TOPIC_PATTERN, re.ASCII)
_KIND: Final = re.compile(
    rf"(?P<topic>{TOPIC_PATTERN})(?:#(?P<shard>[1-9][0-9]?))?\|(?P<way>json|callback)", re.ASCII
)


class Way(StrEnum):
    """The delivery of a job: handed to the consumer that pops it, or sent to its url."""

    PULLED = "json"
    CALLBACK = "callback"


def check_callbacks(ways: Iterable[Way]) -> None:
    """Raise CallbacksOff for a callback while the setting ``ENABLED`` is off."""
    if Way.CALLBACK in ways and not callback_settings().ENABLED:
        raise CallbacksOff(
            "Callbacks are off, so jobs with a url are refused. The operator can "
            "set DELAYED_QUEUE['CALLBACKS']['ENABLED'] to True, for web servers "
            "and workers."
        )


class TopicKind(NamedTuple):
    """The topic, shard and way of a kind."""

    topic: str
    shard: int
    way: Way


def check_topic(name: str) -> str:
    """Return the name of the topic; raise InvalidMessage for an invalid one."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_TOPIC_LENGTH:
        raise InvalidMessage(f"A topic is named by 1 to {MAX_TOPIC_LENGTH} characters.")
    if _TOPIC.fullmatch(name) is None:
        raise InvalidMessage(
            f"The topic {name!r} is invalid: use A-Z, a-z, 0-9, '.', '_', ':' and "
            "'-', and start with one of A-Z, a-z, 0-9 or '_'."
        )
    return name


def shard_of(job_id: str, shards: int) -> int:
    """Return the shard of a job: the same in every process, and in every language with a CRC-32."""
    return crc32(job_id.encode()) % shards if shards > 1 else 0


@lru_cache(maxsize=4096)
def topic_kind(topic: str, shard: int = 0, way: Way = Way.PULLED) -> str:
    """Return the kind of a shard; shard 0 of pulled jobs is that of ``DelayedQueue(topic)``."""
    return f"{topic}#{shard}|{way}" if shard else f"{topic}|{way}"


def host_of(url: str) -> str:
    """Return the ``host:port`` by which callbacks are sharded; empty where the url has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        return ""
    host = f"{parts.hostname or ''}:{port}"
    return host if len(host) <= MAX_HOST_LENGTH and host.split() == [host] else ""


def with_hosts(known: str, hosts: Iterable[str]) -> str:
    """Return the hosts with shards of their own, in order, after adding these while there is room.

    None is ever removed or moved: its shard has jobs.
    """
    both = dict.fromkeys([*known.split(), *filter(None, hosts)])
    return " ".join(list(both)[:OWN_SHARDS])


def shard_of_host(host: str, known: str) -> int:
    """Return the shard of a host's callbacks: its own, or one that it shares."""
    hosts = known.split()
    if host in hosts:
        return hosts.index(host)
    if not host or len(hosts) < OWN_SHARDS:
        return 0
    return OWN_SHARDS + shard_of(host, MAX_SHARDS - OWN_SHARDS)


def shards_of_hosts(known: str) -> int:
    """Return the number of shards of callbacks: one at first, all once some are shared."""
    number = len(known.split())
    return max(number, 1) if number < OWN_SHARDS else MAX_SHARDS


def kinds_of_topic(topic: str, shards: int, *ways: Way, hosts: str = "") -> list[str]:
    """Return the kinds of a topic, of all ways or the given ones, shard after shard."""
    numbers = {Way.PULLED: shards, Way.CALLBACK: shards_of_hosts(hosts)}
    return [
        topic_kind(topic, shard, way)
        for way in ways or (Way.PULLED, Way.CALLBACK)
        for shard in range(numbers[way])
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
