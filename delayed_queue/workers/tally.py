"""What a worker has done so far."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(slots=True)
class Tally:
    """Deliveries by their end."""

    done: int = 0
    failed: int = 0
    snoozed: int = 0
    dead: int = 0
    lost: int = 0

    @property
    def total(self) -> int:
        return sum(astuple(self))

    def __str__(self) -> str:
        return (
            f"{self.done} done, {self.failed} to be retried, {self.snoozed} snoozed, "
            f"{self.dead} dead, {self.lost} lost their lease"
        )
