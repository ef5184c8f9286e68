"""Sections of the settings dict: each a frozen dataclass with a rule for every key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol

from delayed_queue.suggestions import suggest

KIB: Final = 1024
MIB: Final = 1024 * KIB


class Rule(NamedTuple):
    """What a value must be: a test, and the sentence for those that fail it."""

    accepts: Callable[[Any], bool]
    hint: str


def each(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a test of lists and tuples, every member of which passes the test."""
    return lambda value: isinstance(value, list | tuple) and all(map(accepts, value))


def between(least: timedelta, most: timedelta) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, timedelta) and least <= value <= most


def count_to(most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 1 <= value <= most


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def counts(least: int, most: int) -> Rule:
    return Rule(
        lambda value: type(value) is int and least <= value <= most,
        f"It must be an int from {least} to {most}.",
    )


class Section(Protocol):
    """A part of the settings dict that an app registers by ``conf.register_section``."""

    def made(self, value: Any) -> Any:
        """Return the section's frozen object for a dict of it, or for such an object."""

    def wrongs(self, value: Any) -> Iterator[tuple[str, str]]:
        """Yield (what is wrong, what to do) for each problem; never a value: some are secret."""


class RuledSection(NamedTuple):
    """A section that is a dataclass, with a rule for each key."""

    cls: type[Any]
    rules: Mapping[str, Rule]

    def made(self, value: Any) -> Any:
        return value if isinstance(value, self.cls) else self.cls(**value)

    def wrongs(self, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, self.cls):
            value = {field.name: getattr(value, field.name) for field in fields(self.cls)}
        if not isinstance(value, dict):
            yield " must be a dict.", "Write {…} with the keys of the section."
            return
        for key, held in value.items():
            if key not in self.rules:
                yield f" has an unknown key {key!r}.", self._suggestion(key)
            elif not self.rules[key].accepts(held):
                yield f"[{key!r}] cannot be used.", self.rules[key].hint

    def _suggestion(self, key: Any) -> str:
        close = suggest(key, self.rules)
        return f"Did you mean {close!r}?" if close else f"Known keys: {', '.join(self.rules)}."
