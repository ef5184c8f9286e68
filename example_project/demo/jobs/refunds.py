"""The second: look after a refund until it is through, by a consumer that pops."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from example_project.demo.acts import Check, none_of
from example_project.demo.jobs.client import ApiError, JobsClient

TOPIC: Final = "poll-refund"
REFUNDS: Final = 40
CONSUMERS: Final = 3
AGAIN_AFTER: Final = 1.0
MOST_LOOKS: Final = 5
WAIT_SECONDS: Final = 2


@dataclass(slots=True)
class Refunds:
    """Consumers wait for jobs, ask the bank, and release what is to be asked about again."""

    client: Callable[[], JobsClient]
    dice: random.Random
    looks: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    finished: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _needed: dict[str, int] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self, over: threading.Event) -> None:
        """Start the consumers, which wait, and then add the jobs."""
        for _ in range(CONSUMERS):
            thread = threading.Thread(target=self._consume, args=(over,), daemon=True)
            thread.start()
            self._threads.append(thread)
        client = self.client()
        for number in range(REFUNDS):
            refund = f"refund-{number:02}"
            self._needed[refund] = self.dice.randint(1, MOST_LOOKS)
            client.add(jobId=refund, topic=TOPIC, body={"refund": refund})

    def _consume(self, over: threading.Event) -> None:
        client = self.client()
        while not over.is_set():
            try:
                for job in client.pop(TOPIC, count=2, timeout=WAIT_SECONDS):
                    self._look(client, job)
            except (ApiError, OSError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                return

    def _look(self, client: JobsClient, job: dict[str, Any]) -> None:
        refund = job["body"]["refund"]
        self.looks[refund].append(time.time())
        if len(self.looks[refund]) < self._needed[refund]:
            client.release(TOPIC, job, AGAIN_AFTER)
        else:
            client.finish(TOPIC, job)
            self.finished.append(refund)

    @property
    def is_done(self) -> bool:
        return len(self.finished) >= REFUNDS or bool(self.errors)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_SECONDS + 5)

    def rows(self) -> list[tuple[str, str]]:
        looks = sum(map(len, self.looks.values()))
        return [
            (
                "refunds",
                f"{len(self.finished)} through after {looks} looks by {CONSUMERS} consumers",
            ),
        ]

    def figures(self) -> dict[str, Any]:
        return {
            "refunds": len(self._needed),
            "refunds_through": len(self.finished),
            "looks": sum(map(len, self.looks.values())),
        }

    def checks(self) -> list[Check]:
        lost = sorted(set(self._needed) - set(self.finished))
        extra = sorted(
            name for name, looks in self.looks.items() if len(looks) != self._needed[name]
        )
        hasty = [
            name
            for name, looks in self.looks.items()
            if any(b - a < AGAIN_AFTER for a, b in pairwise(looks))
        ]
        return [
            none_of(
                "refunds lost", lost, f"{len(self.finished)} finished", and_also=not self.errors
            ),
            none_of("extra looks", extra, "each popped by one consumer at a time"),
            none_of("hasty looks", hasty, f"never sooner than {AGAIN_AFTER:.0f} s after the last"),
        ]
