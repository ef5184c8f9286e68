"""Hooks by which apps extend the queue, which imports none of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from delayed_queue.exceptions import InvalidConfiguration

if TYPE_CHECKING:
    from datetime import datetime

    from delayed_queue.db.sql import Step


class RedriveGuard(Protocol):
    """The locks to hold while dead letters are put back."""

    def locks(self, ids: Sequence[int], kind: str | None) -> list[Step]:
        """Return the statements to run before the redrive, in its transaction."""

    def most_at_once(self, kind: str, using: str) -> int | None:
        """Return the maximum of letters of the kind in one redrive; None for no limit."""


class RemoteCalls(Protocol):
    """The functions that other programs may call by name."""

    def is_open(self, name: str) -> bool:
        """True if a function of that name exists and may be called."""

    def call(
        self, name: str, args: list[Any], kwargs: dict[str, Any], at: datetime | None
    ) -> dict[str, Any]:
        """Schedule a call with the arguments; return the reply to the caller.

        Raises InvalidMessage for wrong arguments.
        """


@dataclass(frozen=True, slots=True)
class KindFamily:
    """Kinds that share their keys, by patterns for both PostgreSQL and Python.

    ``pattern`` matches a whole kind; its group is the common part of the family.
    ``keeps_schedule`` matches kinds whose messages keep their first schedule when redriven.
    """

    pattern: str
    keeps_schedule: str

    def name_of(self, kind: str) -> str | None:
        """Return the family of a kind, if it has one."""
        match = re.search(self.pattern, kind)
        return None if match is None else f"{match[1]}|"


@dataclass(slots=True)
class Hooks:
    """The hooks that apps set, or append to, in ``AppConfig.ready``.

    ``redrive_guards``: locks that a redrive takes first.
    ``kind_family``: the kinds that share their keys, of one app.
    ``is_queue``: (name, alias) → whether a queue of that name exists without messages.
    ``remote_calls``: the functions that other programs may call, of one app.
    ``limit_guards``: (kind, alias, whether to lock what it depends on until the transaction ends)
    → why limits of the queue would not be exact; empty if they are.
    ``panels``: (kind, key, request, admin site's name) → HTML for the page of a message.
    """

    redrive_guards: list[RedriveGuard] = field(default_factory=list)
    kind_family: KindFamily | None = None
    is_queue: list[Callable[[str, str], bool]] = field(default_factory=list)
    remote_calls: RemoteCalls | None = None
    limit_guards: list[Callable[[str, str, bool], str]] = field(default_factory=list)
    panels: list[Callable[[str, str, Any, str], Any]] = field(default_factory=list)

    def __setattr__(self, name: str, value: object) -> None:
        """Set a hook; raises InvalidConfiguration if another app has set it."""
        if getattr(self, name, None) not in (None, value):
            raise InvalidConfiguration(f"A second app sets the hook {name!r}.")
        object.__setattr__(self, name, value)


hooks: Final = Hooks()
