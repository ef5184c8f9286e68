"""What an app that is built on the queue may add to it, by name; the queue knows none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from delayed_queue.db.statements import Step


class RedriveGuard(Protocol):
    """What is to be held while dead letters are put back."""

    def locks(self, ids: Sequence[int], kind: str | None) -> list[Step]:
        """Return the statements to run before the redrive, in its transaction."""

    def most_at_once(self, kind: str, using: str) -> int | None:
        """Return how many letters of the kind may be redriven at once; None for no limit."""


@dataclass(slots=True)
class Hooks:
    """Lists that apps append to in ``AppConfig.ready``.

    ``redrive_guards``: what holds what a redrive could disturb.
    ``is_queue``: (name, alias) → whether something of that name exists, though nothing is stored.
    ``panels``: (kind, key, request, admin site's name) → more of a message, as HTML for its page.
    """

    redrive_guards: list[RedriveGuard] = field(default_factory=list)
    is_queue: list[Callable[[str, str], bool]] = field(default_factory=list)
    panels: list[Callable[[str, str, Any, str], Any]] = field(default_factory=list)


hooks: Final = Hooks()
