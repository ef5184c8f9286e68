"""Instruments for tests: one that records calls, and some that cannot be loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from delayed_queue import Envelope
from delayed_queue.codecs import codec_named, kind_of
from delayed_queue.handlers import Handler, Registry


class Recorder:
    """Adds a header to offers, and records the start and the end of each call."""

    def __init__(self, name: str = "recorder") -> None:
        self.name = name
        self.seen: list[Any] = []

    def offering(self, queue: str, headers: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return {**(headers or {}), self.name: queue}

    @contextmanager
    def handling(self, envelope: Envelope) -> Iterator[None]:
        self.seen.append(f"{self.name} begins {envelope.key}")
        try:
            yield
        except BaseException as error:
            self.seen.append(f"{self.name} saw {type(error).__name__}")
            raise
        self.seen.append(f"{self.name} ends {envelope.key}")


class Unfinished(Recorder):
    def __init__(self) -> None:
        raise ValueError("not ready")


class Incomplete:
    offering = None

    def handling(self, envelope: Envelope) -> None: ...


def registry_of(**functions: Callable[[Envelope], Any]) -> Registry:
    """Return a registry with those handlers."""
    registry = Registry()
    codec = codec_named("json")
    for name, function in functions.items():
        registry.add(Handler(name, function, codec, kind_of(name, codec)))
    return registry
