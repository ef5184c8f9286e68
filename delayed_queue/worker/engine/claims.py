"""Claims: one about to be made, what has become of those made, and who prolongs their leases."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from django.db import Error, connections

from delayed_queue.db.kept import is_unconnected
from delayed_queue.db.resilience import (
    is_conflict,
    repeat,
    through_conflicts,
    waited_too_long,
    write_by_halves,
)
from delayed_queue.db.silence import limit_waits
from delayed_queue.db.sql import Row, first_row, rows_of, value_of
from delayed_queue.db.statements import run
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.handlers import Manner, Snooze, Treatment
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.queue.group_claims import GroupClaim, GroupWalk, by_turns
from delayed_queue.queue.models import Message
from delayed_queue.queue.store.claim import (
    LeasedRow,
    RankedRow,
    claim_step,
    earliest_first,
    most_urgent_first,
)
from delayed_queue.queue.store.limits import RulesRow
from delayed_queue.queue.store.settle import ExtendedRow
from delayed_queue.worker.engine.consumers import Consumer

# For how long a claim by group waits for another one of its queue, which takes milliseconds; but a
# poll in somebody's transaction lasts to the end of that.
TURN_WAIT_MS: Final = 250
# How many claims by group are made in a row that find nothing, before the worker does something
# else: each has looked at some groups.
MOST_LOOKS: Final = 4
# Of a claim that asks nobody whether it is alone.
_ALONE: Final = ((True,),)


class NotBegun(Snooze):
    """Nobody has begun the message: it goes back to its place in the queue, for anybody."""

    def __init__(self) -> None:
        super().__init__(timedelta(0))


# How long a message waits whose handler could not connect to the database of its queue.
UNCONNECTED: Final = timedelta(seconds=1)


class Claim:
    """The messages of one lease on their way through a worker.

    Handler threads only append to ``done`` and ``failures``; the worker only counts how far it
    has settled them. So no lock is needed, and nothing is done for a message that could be
    done for a batch.
    """

    __slots__ = (
        "acknowledged",
        "call",
        "consumer",
        "deferred_until",
        "done",
        "envelopes",
        "failures",
        "is_async",
        "is_being_written",
        "is_in_doubt",
        "is_suspect",
        "judged",
        "lease_id",
        "lease_seconds",
        "leased_at",
        "shares_lease",
        "timeout",
        "took",
    )  # fmt: skip

    def __init__(
        self,
        consumer: Consumer,
        lease_id: str,
        envelopes: list[Envelope],
        leased_at: float,
        *,
        is_suspect: bool = False,
    ) -> None:
        self.consumer = consumer
        self.lease_id = lease_id
        self.envelopes = envelopes
        self.leased_at = leased_at
        # Leased after a delivery that ended without an answer: it may have killed its worker.
        self.is_suspect = is_suspect
        # Whether other claims have members of the lease: those of suspects are one each.
        self.shares_lease = is_suspect
        # Whether an exchange that has not ended writes about it.
        self.is_being_written = False
        # Whether one that never ended did, so that what is gone may have been settled by it.
        self.is_in_doubt = False
        # The monotonic time before which it is not settled, as somebody else holds its message.
        self.deferred_until = 0.0
        self.call: Callable[[Envelope], Any] = consumer.call
        self.is_async, self.timeout = consumer.is_async, consumer.timeout
        self.lease_seconds = consumer.queue.lease_duration.total_seconds()
        # The seconds that handlers took, until they are counted.
        self.took: list[float] = []
        self.done: list[int] = []
        self.failures: list[tuple[Envelope, BaseException]] = []
        self.acknowledged = 0
        self.judged = 0

    def is_overdue(self, envelope: Envelope, now: float) -> bool:
        """Return whether a message may be another's by now: the process was stopped for long.

        Then it is not to be begun.
        """
        return envelope.lease_lost or now > self.leased_at + self.lease_seconds

    def leave(self, envelope: Envelope) -> None:
        """Have a message given back that nobody has begun, if the lease still holds it."""
        self.failures.append((envelope, NotBegun()))

    def fail(self, envelope: Envelope, error: BaseException) -> None:
        """Record an error; where the handler could not connect, the message waits, uncounted."""
        if is_unconnected(error, self.consumer.queue.using):
            fields = {"queue": envelope.queue, "key": envelope.key}
            log(logging.WARNING, "handler_unconnected", **fields, error=type(error).__name__)
            error = Snooze(UNCONNECTED)
        self.failures.append((envelope, error))

    def by_manner(self) -> list[Claim]:
        """Return it, or a claim for each manner in which its messages are to be handled."""
        treatment = self.consumer.handler.treatment
        if treatment is None:
            return [self]
        manners = [treatment.manner(each) for each in self.envelopes]
        if manners.count(manners[0]) == len(manners):
            return [self._of_manner(manners[0], self.envelopes, 1)]
        groups: dict[Manner, list[Envelope]] = {}
        for manner, envelope in zip(manners, self.envelopes, strict=True):
            groups.setdefault(manner, []).append(envelope)
        return [self._of_manner(each, some, len(groups)) for each, some in groups.items()]

    def _of_manner(self, manner: Manner, envelopes: list[Envelope], groups: int) -> Claim:
        claim = self if groups == 1 else Claim(
            self.consumer, self.lease_id, envelopes, self.leased_at, is_suspect=self.is_suspect
        )  # fmt: skip
        claim.shares_lease = self.shares_lease or groups > 1
        claim.is_async, claim.timeout = manner
        if manner.is_async:
            claim.call = self.consumer.acall
        return claim

    @property
    def unhandled(self) -> int:
        return len(self.envelopes) - len(self.done) - len(self.failures)

    @property
    def is_settled(self) -> bool:
        return self.acknowledged + self.judged == len(self.envelopes)

    @property
    def is_wholly_done(self) -> bool:
        """Whether the lease can be acknowledged as a whole: every member of it was handled."""
        return (
            not self.shares_lease
            and self.acknowledged == 0
            and len(self.done) == len(self.envelopes)
        )  # fmt: skip

    @property
    def has_unwritten(self) -> bool:
        """Whether something is to be settled, and may be by now."""
        if self.is_being_written:
            return False
        is_handled = len(self.done) > self.acknowledged or len(self.failures) > self.judged
        return is_handled and self.deferred_until <= time.monotonic()

    def unwritten_ids(self) -> list[int]:
        failed = [envelope.message_id for envelope, _ in self.failures[self.judged :]]
        return [*self.done[self.acknowledged :], *failed]

    def set_apart(self, ids: set[int]) -> list[Claim]:
        """Move handled members that are not settled yet to claims of their own."""
        gone = [each for each in self.envelopes if each.message_id in ids]
        self.remove(gone)
        self.shares_lease = self.shares_lease or bool(gone)
        return [self._apart(envelope) for envelope in gone]

    def _apart(self, envelope: Envelope) -> Claim:
        apart = Claim(
            self.consumer, self.lease_id, [envelope], self.leased_at, is_suspect=self.is_suspect
        )
        apart.shares_lease, apart.is_in_doubt = True, self.is_in_doubt
        apart.is_async, apart.timeout, apart.call = self.is_async, self.timeout, self.call
        apart.failures = [each for each in self.failures if each[0] is envelope]
        if apart.failures:
            self.failures.remove(apart.failures[0])
        else:
            apart.done = [envelope.message_id]
            self.done.remove(envelope.message_id)
        return apart

    def members(self, ids: Sequence[int]) -> list[Envelope]:
        if len(ids) == len(self.envelopes):
            return self.envelopes
        wanted = set(ids)
        return [each for each in self.envelopes if each.message_id in wanted]

    def handled_ids(self) -> set[int]:
        return {*self.done, *(envelope.message_id for envelope, _ in self.failures)}

    def in_flight(self) -> Iterator[Envelope]:
        """Yield the members that no handler has answered for yet."""
        handled = self.handled_ids()
        return (each for each in self.envelopes if each.message_id not in handled)

    def remove(self, envelopes: list[Envelope]) -> None:
        """Have nothing more to do with members that were given back."""
        gone = {id(each) for each in envelopes}
        self.envelopes = [each for each in self.envelopes if id(each) not in gone]


class Turn(NamedTuple):
    """The answer to a claim: ``is_alone`` is False where another worker was claiming.

    ``next_due_in`` are milliseconds; None where nothing falls due soon, or nobody asked.
    ``has_more``: it may be that more is to be had at once, though less was found than asked for.
    """

    claimed: Sequence[LeasedRow | RankedRow]
    next_due_in: int | None
    is_alone: bool
    has_more: bool = False


# Not now: another worker is claiming, or one has to claim in another manner.
_NOT_NOW: Final = Turn((), None, is_alone=False)


def new_lease_id(holder: str = "") -> str:
    """Return a random id that begins with its holder's eight digits, by which it is found."""
    return holder + str(uuid.uuid4())[len(holder) :]


class ClaimPlan:
    """A claim about to be made: of which consumer, under which leases, by which statements."""

    def __init__(self, consumer: Consumer, limit: int, holder: str = "") -> None:
        self.consumer = consumer
        self._walk = consumer.walk
        self.poll = consumer.begin_poll(limit)
        self.lease_id, self.retaken_id = new_lease_id(holder), new_lease_id(holder)
        self._asked = consumer.claim_steps(self.poll, self.lease_id, self.retaken_id)
        self.steps = list(self._asked.values())

    def read(self, answers: Sequence[list[Row]]) -> Turn:
        """Return what its statements, the last of a round trip, were answered.

        Of a queue with limits the claim is made here.
        """
        of_statement = self._of_statement(answers)
        next_due_in = value_of(of_statement.get("next_due_in", ()))
        rules = first_row(RulesRow, of_statement.get("rules", ()))
        if self._walk is not None:
            return self._of_groups(self._claim_by_rank(self._walk, rules), next_due_in)
        claimed = self._claimed(of_statement["claimed"])
        if rules is not None and not claimed and not rules.is_paused:
            self.consumer.walk = GroupWalk()
            return _NOT_NOW
        return Turn(claimed, next_due_in, value_of(of_statement.get("is_alone", _ALONE)))

    def _of_statement(self, answers: Sequence[list[Row]]) -> dict[str, list[Row]]:
        return dict(zip(self._asked, answers[-len(self._asked) :], strict=True))

    def _of_groups(self, claim: GroupClaim, next_due_in: int | None) -> Turn:
        if not claim.is_limited:
            self.consumer.walk = None
        if not claim.rows and (claim.has_more or not claim.is_limited):
            return _NOT_NOW
        self.consumer.is_rated = claim.is_rated
        waits = [each for each in (next_due_in, claim.permit_in) if each is not None]
        return Turn(by_turns(claim.rows), min(waits, default=None), True, claim.has_more)

    def _claim_by_rank(self, walk: GroupWalk, rules: RulesRow | None) -> GroupClaim:
        """Claim from the kinds of the queue, the most urgent first, one of which has limits."""
        if rules is None or rules.is_paused:
            return GroupClaim([], is_limited=rules is not None)
        rows: list[LeasedRow] = []
        claim = GroupClaim([])
        for kind in self.poll.kinds:
            limit = self.poll.limit - len(rows)
            if kind != self.consumer.queue.kind:
                rows += self._claim_plainly(kind, limit)
            elif limit > 0:
                claim = self._claim_of_groups(walk, limit)
                rows = rows + claim.rows
        return claim._replace(rows=rows)

    def _claim_plainly(self, kind: str, limit: int) -> list[LeasedRow]:
        """Claim what a treatment keeps in another kind: nothing there has a group."""
        queue = self.consumer.queue
        lease = queue.lease_duration // MILLISECOND
        step = claim_step(kind, limit, self.lease_id, self.retaken_id, lease)
        return rows_of(LeasedRow, run(queue.using, [step])[0])

    def _claim_of_groups(self, walk: GroupWalk, limit: int) -> GroupClaim:
        """Return the first of a few claims that found something."""
        make = partial(
            self.consumer.queue._claim_by_group, walk, limit, self.lease_id, self.retaken_id,
            looks=MOST_LOOKS, wait=TURN_WAIT_MS,
        )  # fmt: skip
        try:
            return through_conflicts(make)
        except Error as error:
            if waited_too_long(error) or is_conflict(error):
                return GroupClaim([], has_more=True)
            raise

    def _claimed(self, answer: list[Row]) -> Sequence[LeasedRow | RankedRow]:
        if self.poll.kinds:
            return most_urgent_first(rows_of(RankedRow, answer))
        return earliest_first(rows_of(LeasedRow, answer))


class LeaseKeeper:
    """Renews what was leased longer ago than a third of its lease, in one statement.

    A message whose lease the database no longer knows is marked ``lease_lost``: its handler
    can ask, a coroutine is cancelled, and its result is not written. So is one found that the
    treatment of its queue says is unwanted. Has a thread and a connection of its own, so that
    neither a slow handler nor a blocked claim can let a lease lapse.
    """

    def __init__(
        self,
        using: str,
        shortest_lease: float,
        cancel: Callable[[list[Envelope]], None],
        refused: Callable[[Envelope, Error], None],
    ) -> None:
        self._using = using
        self._refused = refused
        self._interval = shortest_lease / 6
        self._cancel = cancel
        self._woken = threading.Event()
        self._claims: dict[int, Claim] = {}
        self._touched: deque[str] = deque()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def shorten(self, shortest_lease: float) -> None:
        """Have leases in time that are shorter than those known at the start."""
        if shortest_lease / 6 < self._interval:
            self._interval = shortest_lease / 6
            self._woken.set()  # it may be asleep for longer than the lease

    def watch(self, claim: Claim) -> None:
        self._claims[id(claim)] = claim

    def forget(self, claim: Claim) -> None:
        """Renew no more; for what was settled, or is about to be given back."""
        self._claims.pop(id(claim), None)

    def claims(self) -> list[Claim]:
        return list(self._claims.values())

    def check(self, touched: set[str] | None) -> None:
        """Ask now what is left of these leases, for all that are held if None."""
        held = {claim.lease_id for claim in self.claims()}
        if found := held if touched is None else held & touched:
            self._touched.extend(found)
            self._woken.set()

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        limit_waits(self._using)
        try:
            while not self._stopped.is_set():
                self._woken.wait(self._interval)
                self._woken.clear()
                try:
                    self.renew()
                except (Error, ResourceUnavailable) as error:
                    # The leases may hold until the next try. If not, other workers take the
                    # messages, and the fence refuses our results.
                    log(logging.WARNING, "renewal_failed", error=described(error))
        finally:
            connections.close_all()

    def renew(self) -> None:
        """Prolong the leases that have used up a third of their time, or were touched."""
        now = time.monotonic()
        touched = {self._touched.popleft() for _ in range(len(self._touched))}
        by_lease: dict[int, list[Claim]] = defaultdict(list)
        for claim in self.claims():
            lease = claim.consumer.queue.lease_duration
            if claim.lease_id in touched or now - claim.leased_at > lease.total_seconds() / 3:
                by_lease[lease // MILLISECOND].append(claim)
        for lease_ms, claims in by_lease.items():
            self._renew(claims, lease_ms, now)

    def _renew(self, claims: list[Claim], lease_ms: int, now: float) -> None:
        held = {claim: [e for e in claim.in_flight() if not e.lease_lost] for claim in claims}
        wanted = [each for envelopes in held.values() for each in envelopes]
        refused: set[int] = set()

        def refuse(envelope: Envelope, error: Error) -> None:
            # Its lease runs out; those of the others must not.
            refused.add(envelope.message_id)
            self._refused(envelope, error)

        found = write_by_halves(wanted, partial(self._extend, lease_ms=lease_ms), refuse)
        renewed = {(row.id, row.lease_id): row.leased_until for rows in found for row in rows}
        for claim, envelopes in held.items():
            claim.leased_at = now
            asked = [each for each in envelopes if each.message_id not in refused]
            self._note(claim, asked, renewed)
        self._note_unwanted(held)
        self._cancel([each for some in held.values() for each in some if each.is_cancelled])

    def _extend(self, envelopes: Sequence[Envelope], *, lease_ms: int) -> list[ExtendedRow]:
        ids = [each.message_id for each in envelopes]
        lease_ids = sorted({each.lease_id for each in envelopes})
        extend = partial(Message.objects.extend, lease_ids, ids, lease_ms, using=self._using)
        return repeat(self._using, extend)

    def _note_unwanted(self, held: dict[Claim, list[Envelope]]) -> None:
        asked: dict[Treatment, list[Envelope]] = defaultdict(list)
        for claim, envelopes in held.items():
            if (treatment := claim.consumer.handler.treatment) is not None:
                asked[treatment] += [each for each in envelopes if not each.is_cancelled]
        for treatment, some in asked.items():
            for envelope in treatment.unwanted(some, self._using):
                envelope.is_unwanted = True

    def _note(
        self, claim: Claim, envelopes: list[Envelope], renewed: dict[tuple[int, str], int]
    ) -> None:
        # Asked again after the answer: what was handled meanwhile may be deleted, not lost.
        handled = claim.handled_ids()
        for envelope in envelopes:
            leased_until = renewed.get((envelope.message_id, envelope.lease_id))
            if leased_until is not None:
                envelope.leased_until_ms = leased_until
            elif envelope.message_id not in handled and id(claim) in self._claims:
                envelope.lease_lost = True
                log(logging.WARNING, "lease_lost", queue=envelope.queue, key=envelope.key)
