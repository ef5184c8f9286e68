"""Settling: what is written about handled messages, as many as can be in one round trip."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from delayed_queue.codecs import channel_of
from delayed_queue.conf import get_settings
from delayed_queue.cron import runs as cron_runs
from delayed_queue.cron.runs import Run, record_step
from delayed_queue.db.sql import Row, Step, column_of
from delayed_queue.handlers import Failure, Snooze, Treatment, Verdict, storable
from delayed_queue.logs import log
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.observe import signals
from delayed_queue.queue.models import Message
from delayed_queue.queue.store.finishing import (
    DIED,
    Leaving,
    batches_of,
    count_step,
    finish_step,
    outcome_of,
)
from delayed_queue.queue.store.settle import (
    acknowledge_leases_step,
    acknowledge_members_step,
    dead_letter_step,
    release_step,
)
from delayed_queue.worker.engine.claims import Claim, NotBegun
from delayed_queue.worker.engine.consumers import Consumer
from delayed_queue.worker.engine.leases import LeaseKeeper
from delayed_queue.worker.engine.refusals import wait_after

# At most N failures in one round trip: each, or all that are deferred alike, is one statement.
MOST_FAILURES: Final = 100
# Maximum wait for locks in an exchange. PostgreSQL searches for deadlocks after 1 s, so the worker
# gives way before another transaction has to.
LOCK_WAIT_MS: Final = 250
# Seconds between two tries to settle a message that another transaction has locked.
PAUSE_SECONDS: Final = 1.0

Rows = list[Row]
# A claim, and the ids of its messages to acknowledge.
_Part = tuple[Claim, list[int]]


class _Failure(NamedTuple):
    """A message whose handler did not return, and what becomes of it."""

    claim: Claim
    envelope: Envelope
    error: BaseException
    verdict: Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Settlement:
    """A statement, what to note once its transaction has committed, and whom to wake then."""

    step: Step
    note: Callable[[Rows], None]
    channel: str | None = None


def _ignore(rows: Rows) -> None:
    """Note nothing of an answer."""


def channels_of(settlements: Iterable[Settlement]) -> list[str]:
    """Return whom to wake once they are written: each once."""
    channels = {each.channel: None for each in settlements if each.channel is not None}
    return list(channels) if get_settings().NOTIFY else []


class Settler:
    """Turns what handlers answered into statements, and their answers into counts and signals.

    Nothing is noted before the commit: after an outage the same is written again, not handled
    again. Then what is gone of a claim that is in doubt is taken for settled, and not for lost.
    """

    def __init__(self, sender: Any, counts: Counts) -> None:
        self._sender = sender
        self._counts = counts

    def settlements(self, claims: Iterable[Claim]) -> list[Settlement]:
        """Return what to write about claims that have something to settle.

        Two statements for what went well, and one for each treatment that writes about it.
        """
        parts: list[_Part] = []
        failures: list[tuple[Claim, Envelope, BaseException]] = []
        for claim in claims:
            if ids := claim.done[claim.acknowledged :]:
                parts.append((claim, ids))
            failures.extend((claim, *each) for each in claim.failures[claim.judged :])
        alike = list(self._alike(failures))
        leaving, batches = _leaving(parts, alike)
        return [
            *([Settlement(count_step(leaving), _ignore)] if leaving else []),
            *self._of_runs(parts, alike),
            *self._of_done(parts),
            *self._of_treatments(alike),
            *map(self._of_failures, alike),
            *([Settlement(finish_step(batches), _ignore)] if batches else []),
        ]  # fmt: skip

    def _of_done(self, parts: Iterable[_Part]) -> Iterable[Settlement]:
        treated: dict[Treatment | None, list[_Part]] = {}
        for part in parts:
            treated.setdefault(part[0].consumer.handler.treatment, []).append(part)
        plain: list[_Part] = []
        for treatment, some in treated.items():
            step = None
            if treatment is not None:
                done = [each for claim, ids in some for each in claim.members(ids)]
                step = treatment.acknowledging(done)
            if step is None:
                plain.extend(some)
            else:
                yield Settlement(step, partial(self._note_done, some))
        yield from self._of_plain(plain)

    def _of_plain(self, parts: list[_Part]) -> Iterable[Settlement]:
        whole: list[_Part] = []
        others: list[_Part] = []
        for claim, ids in parts:
            is_whole = not claim.shares_lease and len(ids) == len(claim.envelopes)
            (whole if is_whole else others).append((claim, ids))
        if whole:
            step = acknowledge_leases_step([claim.lease_id for claim, _ in whole])
            yield Settlement(step, partial(self._note_done, whole))
        if others:
            members = [message_id for _, ids in others for message_id in ids]
            step = acknowledge_members_step([claim.lease_id for claim, _ in others], members)
            yield Settlement(step, partial(self._note_done, others))

    def _of_runs(self, parts: list[_Part], alike: list[list[_Failure]]) -> Iterable[Settlement]:
        """Yield the records of runs of schedules, by kind."""
        runs: dict[str, list[Run]] = {}
        for claim, ids in parts:
            if claim.ticks is not None:
                found = [claim.ticks.run(each, cron_runs.DONE) for each in claim.members(ids)]
                runs.setdefault(claim.consumer.queue.kind, []).extend(found)
        for each in chain.from_iterable(alike):
            if each.claim.ticks is not None and not isinstance(each.error, Snooze):
                outcome = cron_runs.DEAD if each.verdict.is_dead else cron_runs.FAILED
                run = each.claim.ticks.run(each.envelope, outcome)
                runs.setdefault(each.claim.consumer.queue.kind, []).append(run)
        for kind, found in runs.items():
            yield Settlement(record_step(kind, str(self._sender), found), _ignore)

    def _of_treatments(self, alike: list[list[_Failure]]) -> Iterable[Settlement]:
        """Yield what treatments write in the transaction that settles their failed messages."""
        failed: dict[Treatment, list[Failure]] = {}
        for each in chain.from_iterable(alike):
            if (treatment := each.claim.consumer.handler.treatment) is not None:
                failed.setdefault(treatment, []).append((each.envelope, each.error, each.verdict))
        for treatment, some in failed.items():
            for step in treatment.recording(some):
                yield Settlement(step, _ignore)

    def _alike(
        self, failures: list[tuple[Claim, Envelope, BaseException]]
    ) -> Iterable[list[_Failure]]:
        """Return the first failures, together those that were deferred alike: a statement each.

        In their order, and none before another of its claim: a claim counts how far it is settled.
        """
        groups: dict[Any, list[_Failure]] = {}
        for claim, envelope, error in failures:
            verdict = claim.consumer.judge(error, envelope)
            alike = isinstance(error, Snooze)
            deferred = (envelope.lease_id, type(error), verdict.delay)
            key = deferred if alike else envelope.message_id
            if key not in groups and len(groups) == MOST_FAILURES:
                break
            groups.setdefault(key, []).append(_Failure(claim, envelope, error, verdict))
        return groups.values()

    def _note_done(self, parts: list[_Part], rows: Rows) -> None:
        wanted = sum(len(ids) for _, ids in parts)
        # Nearly always all are deleted; only otherwise is it worth asking which.
        deleted = None if len(rows) == wanted else set(column_of(rows))
        # If a message was claimed twice, the later claim owns it.
        holders = {each: claim for claim, ids in parts for each in ids} if deleted else {}
        for claim, ids in parts:
            claim.acknowledged += len(ids)
            done = ids
            if deleted is not None and not claim.is_in_doubt:
                done = [each.message_id for each in claim.members(ids) if each.is_settled]
                done += [each for each in ids if each in deleted and holders[each] is claim]
            claim.consumer.schedule.end_trial()
            self._counts.lost += len(ids) - len(done)
            if claim.expired:
                gone = claim.members([each for each in done if each in claim.expired])
                self.count_expired(claim.consumer, gone)
                done = [each for each in done if each not in claim.expired]
            self._counts.done += len(done)
            claim.consumer.tally.done += len(done)
            claim.consumer.note_slot()
            _note_times(claim)
            self._announce_done(claim, done)

    def _announce_done(self, claim: Claim, done: list[int]) -> None:
        if done and signals.acknowledged.has_listeners():
            envelopes = claim.members(done)
            signals.announce(signals.acknowledged, self._sender, envelopes=envelopes)

    def _of_failures(self, alike: list[_Failure]) -> Settlement:
        claim, envelope, error, verdict = alike[0]
        note, text = partial(self._note_failures, alike), verdict.error or None
        if verdict.delay is None:
            reason = storable(verdict.reason) or "rejected"
            return Settlement(
                dead_letter_step(envelope.lease_id, [envelope.message_id], reason, text), note
            )  # fmt: skip
        ids = [each.envelope.message_id for each in alike]
        if isinstance(error, NotBegun):
            step = release_step(envelope.lease_id, ids, None, 1, None)
            return Settlement(step, note, channel_of(claim.consumer.queue.kind))
        delay, refund = verdict.delay // MILLISECOND, 0 if verdict.counts else 1
        return Settlement(release_step(envelope.lease_id, ids, delay, refund, text), note)

    def release_refused(self, claim: Claim, error: BaseException, text: str | None) -> Settlement:
        """Return the release of a message whose other settlements the database refuses.

        It writes no task's result and perhaps no error text: one of these may be what is refused.
        """
        (envelope,) = claim.envelopes
        delay = wait_after(envelope, claim.consumer.policy.delays)
        ids = [envelope.message_id]
        step = release_step(envelope.lease_id, ids, delay // MILLISECOND, 0, text)
        failure = _Failure(claim, envelope, error, Verdict(delay))
        return Settlement(step, partial(self._note_failures, [failure]))

    def _note_failures(self, alike: list[_Failure], rows: Rows) -> None:
        written = set(column_of(rows))
        for claim, envelope, error, verdict in alike:
            claim.judged += 1
            claim.consumer.note_slot()
            _note_times(claim)
            if envelope.message_id in written or claim.is_in_doubt:
                self.count_failure(claim.consumer, envelope, error, verdict)
            else:
                self._counts.lost += 1

    def count_failure(
        self, consumer: Consumer, envelope: Envelope, error: BaseException, verdict: Verdict
    ) -> None:
        """Count and announce a failure that was written, and be there when it is due again."""
        if verdict.delay is None:
            self._counts.dead += 1
            consumer.tally.died += 1
            signals.announce(
                signals.dead, self._sender, envelope=envelope, reason=verdict.reason, error=error
            )
            return
        if isinstance(error, NotBegun):
            consumer.rewind()
            return
        if isinstance(error, Snooze) and error.rest:
            consumer.schedule.rest(error.rest.total_seconds())
        else:
            consumer.schedule.end_trial()
        if verdict.counts:
            self._counts.failed += 1
            consumer.tally.failed += 1
            signals.announce(
                signals.failed, self._sender, envelope=envelope, error=error, delay=verdict.delay
            )
        else:
            self._counts.snoozed += 1
        if verdict.delay <= consumer.queue.poll_interval:
            consumer.schedule.wake()

    def count_expired(self, consumer: Consumer, envelopes: list[Envelope]) -> None:
        """Count and announce messages that were deleted because they had expired."""
        self._counts.expired += len(envelopes)
        consumer.tally.expired += len(envelopes)
        if envelopes:
            signals.announce(signals.expired, self._sender, envelopes=envelopes)

    def count_done(self, consumer: Consumer, envelopes: list[Envelope]) -> None:
        """Count and announce what a transaction handled and deleted."""
        self._counts.done += len(envelopes)
        consumer.tally.done += len(envelopes)
        if envelopes:
            consumer.schedule.end_trial()
            signals.announce(signals.acknowledged, self._sender, envelopes=envelopes)


def _leaving(
    parts: Iterable[_Part], alike: Iterable[list[_Failure]]
) -> tuple[list[Leaving], set[int]]:
    """Return the members that leave their batches, and these."""
    left = [
        (each, outcome_of(each, has_expired=each.message_id in claim.expired))
        for claim, ids in parts for each in claim.members(ids) if each.batch_id is not None
    ]  # fmt: skip
    left += [
        (each.envelope, DIED)
        for each in chain.from_iterable(alike)
        if each.envelope.batch_id is not None and each.verdict.is_dead
    ]
    leaving = [Leaving(each.message_id, each.lease_id, outcome) for each, outcome in left]
    return leaving, batches_of(each for each, _ in left)


def _note_times(claim: Claim) -> None:
    """Count what handlers took; they may append meanwhile."""
    took = claim.took[:]
    if took:
        del claim.took[: len(took)]
        claim.consumer.tally.note_runs(took)


@dataclass(slots=True)
class Counts:
    """Deliveries by their end."""

    done: int = 0
    failed: int = 0
    snoozed: int = 0
    dead: int = 0
    lost: int = 0
    expired: int = 0

    @property
    def total(self) -> int:
        return sum(self.numbers)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers in their order; ``astuple`` would copy them deeply, at each turn."""
        return self.done, self.failed, self.snoozed, self.dead, self.lost, self.expired

    def __str__(self) -> str:
        return (
            f"{self.done} done, {self.failed} to be retried, {self.snoozed} snoozed, "
            f"{self.dead} dead, {self.lost} lost their lease"
            f"{f', {self.expired} expired' if self.expired else ''}"
        )


class LockDeferral:
    """Defers messages that other sessions have locked, so that the others do not wait.

    An update or drop of a message in flight locks it until its commit. Without this, one long
    transaction would hold up everything that a worker settles.
    """

    def __init__(self, using: str, keeper: LeaseKeeper) -> None:
        self._using = using
        self._keeper = keeper

    def defer(self) -> None:
        """Set apart what is locked now."""
        claims = [claim for claim in self._keeper.claims() if claim.has_unwritten]
        held = self._held(claims) or self._treated(claims)
        log(logging.INFO, "messages_held", count=len(held))
        for claim in claims:
            for apart in claim.set_apart(held):
                apart.deferred_until = time.monotonic() + PAUSE_SECONDS
                self._keeper.watch(apart)
            if claim.is_settled:
                self._keeper.forget(claim)

    def retry(self) -> None:
        """Ask of what was deferred long enough whether it is still held."""
        now = time.monotonic()
        claims = [claim for claim in self._keeper.claims() if 0 < claim.deferred_until <= now]
        held = self._held(claims) if claims else set()
        for claim in claims:
            is_held = not held.isdisjoint(claim.unwritten_ids())
            claim.deferred_until = now + PAUSE_SECONDS if is_held else 0.0

    def nap(self) -> float:
        """Return the seconds until the next try of a deferred message."""
        times = [claim.deferred_until for claim in self._keeper.claims() if claim.deferred_until]
        return min(times) - time.monotonic() if times else math.inf

    def _treated(self, claims: list[Claim]) -> set[int]:
        """Return the messages of apps and batches, if it is their rows that are locked."""
        treated = (
            each
            for each in claims
            if each.consumer.handler.treatment is not None or batches_of(each.envelopes)
        )
        return {message_id for claim in treated for message_id in claim.unwritten_ids()}

    def _held(self, claims: list[Claim]) -> set[int]:
        ids = [message_id for claim in claims for message_id in claim.unwritten_ids()]
        return set(Message.objects.held(ids, using=self._using))
