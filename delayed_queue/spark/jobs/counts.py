"""How many rows became what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the rows that were offered; what a target of ``import`` returns."""

    created: int = 0
    updated: int = 0
    ignored: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.created + other.created,
            self.updated + other.updated,
            self.ignored + other.ignored,
        )

    @property
    def total(self) -> int:
        return self.created + self.updated + self.ignored
