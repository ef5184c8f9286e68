"""The split of a failed batch: which of its messages are handled together next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def halves(members: Sequence[T]) -> list[Sequence[T]]:
    """Return both halves in their order, the first one larger by at most one; one member whole."""
    middle = (len(members) + 1) // 2
    return [each for each in (members[:middle], members[middle:]) if each]


class Split:
    """The calls that a batch of N messages needs, in the order of its messages.

    ``next_part`` returns the positions to handle together; ``failed`` replaces them by their halves
    until a message is alone. With one failing message there are at most 2·⌈log2 N⌉ further calls.
    Messages at the positions ``alone`` are never handled with others.
    """

    def __init__(self, size: int, alone: Sequence[int] = ()) -> None:
        cuts = sorted({0, size, *alone, *(each + 1 for each in alone)})
        # The next part is the last one.
        self._waiting = [range(a, b) for a, b in pairwise(cuts)][::-1]

    def next_part(self) -> range | None:
        """Return the positions to handle now; None when all are handled."""
        return self._waiting.pop() if self._waiting else None

    def failed(self, part: range) -> bool:
        """Record that a part failed; return whether its message was alone, so is to blame."""
        if len(part) == 1:
            return True
        self._waiting.extend(reversed(halves(part)))  # type: ignore[arg-type]
        return False
