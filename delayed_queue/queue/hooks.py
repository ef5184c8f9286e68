"""Hooks by which an app adds to the queue, by name; the queue knows none of the apps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from delayed_queue.db.sql import Step


class RedriveGuard(Protocol):
    """The locks to hold while dead letters are put back."""

    def locks(self, ids: Sequence[int], kind: str | None) -> list[Step]:
        """Return the statements to run before the redrive, in its transaction."""

    def most_at_once(self, kind: str, using: str) -> int | None:
        """Return how many letters of the kind may be redriven at once; None for no limit."""


class RemoteCalls(Protocol):
    """The functions that programs elsewhere may have called, by name."""

    def is_open(self, name: str) -> bool:
        """Return whether there is one of that name, and it says that it may be called."""

    def call(
        self, name: str, args: list[Any], kwargs: dict[str, Any], at: datetime | None
    ) -> dict[str, Any]:
        """Have it called with the arguments at that time; return what the caller is to know.

        Raises InvalidMessage for arguments that do not fit.
        """


@dataclass(frozen=True, slots=True)
class KindFamily:
    """Kinds that share their keys, by patterns that PostgreSQL and Python read alike.

    ``pattern``: matches a whole kind; its one group is what the kinds of a family have in common.
    ``keeps_schedule``: matches those whose messages keep their first schedule when redriven.
    """

    pattern: str
    keeps_schedule: str

    def name_of(self, kind: str) -> str | None:
        """Return the family of a kind, if it is of one."""
        match = re.search(self.pattern, kind)
        return None if match is None else f"{match[1]}|"


@dataclass(slots=True)
class Hooks:
    """The hooks that apps set, or append to, in ``AppConfig.ready``.

    ``redrive_guards``: what holds what a redrive could disturb.
    ``kind_family``: the kinds that share their keys, of the one app that has such kinds.
    ``is_queue``: (name, alias) → whether something of that name exists, though nothing is stored.
    ``remote_calls``: what may be called from elsewhere, of the one app that has such.
    ``limit_guards``: (kind, alias, whether to hold what it depends on until the transaction ends)
    → why limits of the queue would not be exact; empty if they are.
    ``panels``: (kind, key, request, admin site's name) → more of a message, as HTML for its page.
    """

    redrive_guards: list[RedriveGuard] = field(default_factory=list)
    kind_family: KindFamily | None = None
    is_queue: list[Callable[[str, str], bool]] = field(default_factory=list)
    remote_calls: RemoteCalls | None = None
    limit_guards: list[Callable[[str, str, bool], str]] = field(default_factory=list)
    panels: list[Callable[[str, str, Any, str], Any]] = field(default_factory=list)


hooks: Final = Hooks()
