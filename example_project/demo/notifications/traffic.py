"""The shipped requests, sorted by the ways they come in, and when each does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Final

from example_project.demo.notifications.campaign import TENANT as CAMPAIGN_TENANT
from example_project.notifications.samples import Sample, read_samples

# The file's minute, and at least so long for fewer requests.
SECONDS: Final = 24.0
LEAST_SECONDS: Final = 8.0
# How much sooner than in the file what is for later is due, and expires what expires.
HURRY: Final = 2.5
ALL: Final = 10_000
REST_TENANT: Final = "demo-rest"
BROKER_TENANT: Final = "demo-broker"


class Way(StrEnum):
    SINGLE = "REST, one by one"
    BULK = "REST, in bulk"
    BROKER = "broker"
    CAMPAIGN = "campaign"


TENANTS: Final = {
    Way.SINGLE: REST_TENANT, Way.BULK: REST_TENANT,
    Way.BROKER: BROKER_TENANT, Way.CAMPAIGN: CAMPAIGN_TENANT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said to a request: the id of its notification, or what is wrong with it."""

    number: int
    way: Way
    id: str = ""
    is_duplicate: bool = False
    reasons: tuple[str, ...] = ()


def way_of(sample: Sample) -> Way:
    """Codes come one by one, as somebody waits for each; what is no JSON fits no bulk."""
    if sample.kind == "offer":
        return Way.CAMPAIGN
    if sample.via == "broker":
        return Way.BROKER
    return Way.SINGLE if sample.kind == "code" or "text" in sample.line else Way.BULK


@dataclass(slots=True)
class Traffic:
    """All samples by their way, and the pace at which they are played."""

    samples: dict[Way, list[Sample]]
    by_number: dict[int, Sample]
    seconds: float
    webhooks: str
    began_at: float = 0.0
    # How much faster than in the file the requests come.
    pace: float = field(init=False)

    def __post_init__(self) -> None:
        last = max(each.after for each in self.by_number.values())
        self.pace = last.total_seconds() / self.seconds

    @property
    def count(self) -> int:
        return len(self.by_number)

    @property
    def wrong(self) -> set[int]:
        return {number for number, each in self.by_number.items() if each.kind == "wrong"}

    def due_at(self, sample: Sample) -> float:
        """Return when it comes, in seconds of Unix time."""
        return self.began_at + sample.after.total_seconds() / self.pace

    def body(self, sample: Sample) -> bytes:
        return sample.body(datetime.now(UTC), self.webhooks, HURRY)

    def distinct(self, numbers: Iterable[int]) -> int:
        """Return how many notifications these requests of one tenant ask for."""
        requests = (self.by_number[number] for number in numbers)
        keys = (each.line.get("request", {}).get("dedupeKey") or each.number for each in requests)
        return len(set(keys))


def read_traffic(limit: int | None, webhooks: str) -> Traffic:
    """Read the file, or its first lines."""
    samples: dict[Way, list[Sample]] = {way: [] for way in Way}
    found = list(islice(read_samples(), limit))
    for each in found:
        samples[way_of(each)].append(each)
    seconds = max(SECONDS * len(found) / ALL, LEAST_SECONDS)
    by_number = {each.number: each for each in found}
    return Traffic(samples, by_number, seconds, webhooks)


def reasons(answers: Sequence[Answer]) -> Counter[str]:
    """Return how often each thing was wrong; of a request the first counts."""
    return Counter(each.reasons[0] for each in answers if each.reasons)
