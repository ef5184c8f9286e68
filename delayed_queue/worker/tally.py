"""What a worker has done so far."""

from __future__ import annotations

from dataclasses import dataclass


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
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers in their order; ``astuple`` would copy them deeply, at each turn."""
        return self.done, self.failed, self.snoozed, self.dead, self.lost

    def __str__(self) -> str:
        return (
            f"{self.done} done, {self.failed} to be retried, {self.snoozed} snoozed, "
            f"{self.dead} dead, {self.lost} lost their lease"
        )
