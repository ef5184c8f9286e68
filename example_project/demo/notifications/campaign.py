"""The way in for a campaign: many requests at once, from rows and not over the wire.

The act hands them to the intake itself; ``example_project.notifications.importing`` does so for
rows that Spark reads, as the act of the pipeline shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from example_project.notifications import intake
from example_project.notifications.intake import Refused
from example_project.notifications.models import Source

TENANT: Final = "demo-campaign"


@dataclass(slots=True)
class Counts:
    """What became of rows."""

    stored: int = 0
    duplicates: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.stored + other.stored,
            self.duplicates + other.duplicates,
            self.refused + other.refused,
        )


def import_rows(rows: Sequence[object], tenant: str = TENANT) -> Counts:
    """Store the valid ones of these requests and offer their messages, in one transaction.

    The same rows again are duplicates where they have a ``dedupeKey``.
    """
    counts = Counts()
    for answer in intake.accept(rows, tenant=tenant, source=Source.IMPORT):
        if isinstance(answer, Refused):
            counts.refused[reason_of(answer.errors[0].as_dict())] += 1
        elif answer.is_duplicate:
            counts.duplicates += 1
        else:
            counts.stored += 1
    return counts


def reason_of(error: dict[str, str]) -> str:
    """Return what was wrong, in a few words: all ways in say it alike."""
    return f"{error.get('path') or 'request'}: {error.get('message', '')}"
