"""Everything posted by all ways at once, each request at its time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from django.db import connection

from example_project.demo.exceptions import DemoError
from example_project.demo.notifications.broker import Broker
from example_project.demo.notifications.campaign import Counts, import_rows
from example_project.demo.notifications.traffic import Answer, Traffic, Way
from example_project.demo.notifications.upstream import Upstream
from example_project.notifications.samples import Sample

SINGLE_POSTERS: Final = 3
# How long requests are gathered for a bulk, and for the broker.
GATHER_SECONDS: Final = 0.4
MOST_AT_ONCE: Final = 500
# After this share of the time the campaign begins.
CAMPAIGN_AFTER: Final = 0.15
# Of the reminders in bulk, one in so many is not wanted any more.
CANCELLED: Final = 10


@dataclass(slots=True)
class Posting:
    """Threads that post; ``answers`` and all the others are complete once it ``is_done``."""

    traffic: Traffic
    broker: Broker
    connect: Callable[[], Upstream]
    answers: list[Answer] = field(default_factory=list)
    published: int = 0
    campaign: Counts = field(default_factory=Counts)
    campaign_began_at: float = 0.0
    cancelled: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    _errors: list[BaseException] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        singles = self.traffic.samples[Way.SINGLE]
        parts = [singles[start::SINGLE_POSTERS] for start in range(SINGLE_POSTERS)]
        self._begin(*(lambda part=part: self._post_singles(part) for part in parts))
        self._begin(self._post_bulks, self._publish, self._run_campaign)

    def stop(self) -> None:
        """End all posting, done or not."""
        self._over.set()
        for each in self._threads:
            each.join()

    @property
    def is_done(self) -> bool:
        """Tell if all is posted; raises DemoError if it cannot be."""
        if self._errors:
            raise DemoError(f"Posting ended: {self._errors[0]!r}") from self._errors[0]
        return not any(each.is_alive() for each in self._threads)

    def _begin(self, *targets: Callable[[], None]) -> None:
        for each in targets:
            thread = threading.Thread(target=self._run, args=(each,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _run(self, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception as error:  # told by is_done
            self._errors.append(error)
        finally:
            connection.close()

    # Each in a thread of its own

    def _post_singles(self, samples: list[Sample]) -> None:
        upstream = self.connect()
        for each in samples:
            if self._waited_until(self.traffic.due_at(each)):
                break
            self.answers.append(upstream.post(self.traffic, each))
        self._leave(upstream)

    def _post_bulks(self) -> None:
        upstream = self.connect()
        for batch in self._batches(Way.BULK):
            answers = upstream.post_many(self.traffic, batch)
            self.answers += answers
            for each in filter(self._is_unwanted, answers):
                if upstream.cancel(each.id):
                    self.cancelled.append(each.id)
        self._leave(upstream)

    def _is_unwanted(self, answer: Answer) -> bool:
        sample = self.traffic.by_number[answer.number]
        return bool(answer.id) and sample.kind == "reminder" and answer.number % CANCELLED == 0

    def _publish(self) -> None:
        for batch in self._batches(Way.BROKER):
            self.broker.publish((message_id(each), self.traffic.body(each)) for each in batch)
            self.published += len(batch)

    def _run_campaign(self) -> None:
        traffic = self.traffic
        samples = traffic.samples[Way.CAMPAIGN]
        if self._waited_until(traffic.began_at + CAMPAIGN_AFTER * traffic.seconds):
            return
        self.campaign_began_at = time.time()
        for start in range(0, len(samples), MOST_AT_ONCE):
            batch = samples[start : start + MOST_AT_ONCE]
            self.campaign += import_rows([json.loads(traffic.body(each)) for each in batch])

    def _leave(self, upstream: Upstream) -> None:
        self.surprises += upstream.surprises
        upstream.close()

    def _batches(self, way: Way) -> Iterator[list[Sample]]:
        """Yield the requests of a way as they come, together what comes within a moment."""
        batch: list[Sample] = []
        ends_at = 0.0
        for each in self.traffic.samples[way]:
            is_later = batch and self.traffic.due_at(each) > ends_at
            if is_later or len(batch) == MOST_AT_ONCE:
                if self._waited_until(ends_at):
                    return
                yield batch
                batch = []
            if not batch:
                ends_at = self.traffic.due_at(each) + GATHER_SECONDS
            batch.append(each)
        if batch and not self._waited_until(ends_at):
            yield batch

    def _waited_until(self, at: float) -> bool:
        """Wait until then; True if it is over before."""
        return self._over.wait(max(at - time.time(), 0))


def message_id(sample: Sample) -> str:
    return f"demo-{sample.number}"


def number_of(message: str) -> int:
    """Return the number of the sample that was published under this id; -1 if none was."""
    number = message.removeprefix("demo-")
    return int(number) if number.isdecimal() else -1
