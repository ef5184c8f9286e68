"""Claim plans: which messages a worker leases next, by which statements."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from django.db import Error

from delayed_queue.db.resilience import is_conflict, through_conflicts, waited_too_long
from delayed_queue.db.sql import Row, first_row, rows_of, value_of
from delayed_queue.db.statements import run
from delayed_queue.messages import MILLISECOND
from delayed_queue.queue.group_claims import GroupClaim, GroupWalk, by_turns
from delayed_queue.queue.store.claim import (
    LeasedRow,
    claim_step,
    earliest_first,
    most_urgent_first,
)
from delayed_queue.queue.store.limits import RulesRow
from delayed_queue.worker.engine.calls import apart
from delayed_queue.worker.engine.claims import Claim
from delayed_queue.worker.engine.consumers import Consumer
from delayed_queue.worker.engine.scanning import PollResult

# Maximum wait, in milliseconds, for another claim by group of the same queue. A claim takes
# milliseconds, but a poll within a caller's transaction lasts until that ends.
TURN_WAIT_MS: Final = 250
# At most N claims by group that find nothing in a row: each has read some groups.
MOST_LOOKS: Final = 4
# The reply where the claim need not be alone.
_ALONE: Final = ((True,),)


def new_lease_id(holder: str = "") -> str:
    """Return a random id that starts with the eight digits of its holder."""
    return holder + str(uuid.uuid4())[len(holder) :]


class ClaimPlan:
    """The next claim of a consumer: its leases, and its statements by name."""

    def __init__(self, consumer: Consumer, limit: int, holder: str = "") -> None:
        self.consumer = consumer
        self._walk = consumer.walk
        self.poll = consumer.begin_poll(limit)
        self.lease_id, self.retaken_id = new_lease_id(holder), new_lease_id(holder)
        # The work that its messages will be for a pool: one call, or one for each message.
        self.load = 1 if consumer.handler.many else self.poll.limit
        self.steps = consumer.claim_steps(self.poll, self.lease_id, self.retaken_id)

    def finish(self, replies: Mapping[object, list[Row]]) -> Sequence[LeasedRow]:
        """Return what was leased, and schedule the next poll of the consumer.

        A queue with limits is claimed here.
        """
        next_due_in = value_of(replies.get("next_due_in", ()))
        rules = first_row(RulesRow, replies.get("rules", ()))
        if self._walk is not None:
            return self._finish_walk(self._claim_by_rank(self._walk, rules), next_due_in)
        rows = self._leased(replies["claimed"])
        has_limits = rules is not None and not rows and not rules.is_paused
        if has_limits:
            self.consumer.walk = GroupWalk()
        if not rows and (has_limits or not value_of(replies.get("is_alone", _ALONE))):
            self.consumer.schedule.wait_for_turn()
        else:
            self._end_poll(rows, next_due_in)
        return rows

    def open(self, rows: Sequence[LeasedRow]) -> list[Claim]:
        """Return the claims of what was leased: one for each manner, and for each suspect."""
        consumer, began_at = self.consumer, self.poll.began_at
        fresh = [row for row in rows if not row.is_retaken]
        retaken = [row for row in rows if row.is_retaken]
        envelopes = consumer.queue._open_rows(fresh, self.lease_id)
        suspects = consumer.queue._open_rows(retaken, self.retaken_id)
        claims = [Claim(consumer, self.lease_id, envelopes, began_at)] if envelopes else []
        claims += [
            Claim(consumer, self.retaken_id, [each], began_at, is_suspect=True)
            for each in suspects
        ]  # fmt: skip
        parts = (part for claim in claims for part in claim.by_manner())
        found = [each for part in parts for each in part.by_tick()]
        if not consumer.handler.many:
            return found
        consumer.meets_suspects = bool(retaken)
        return [each for part in found for each in apart(part, rows)]

    def _end_poll(
        self,
        rows: Sequence[LeasedRow],
        next_due_in: int | None,
        *,
        has_more: bool = False,
    ) -> None:
        latest, last_id = (rows[-1].due_at, rows[-1].id) if rows else (None, 0)
        result = PollResult(len(rows), latest, next_due_in, has_more=has_more, last_id=last_id)
        self.consumer.end_poll(self.poll, result)
        if rows:
            # The database's clock when they were leased, all by one statement.
            now = rows[0].leased_until - self.consumer.queue.lease_duration // MILLISECOND
            self.consumer.tally.note_lateness([now - row.due_at for row in rows])

    def _leased(self, reply: list[Row]) -> Sequence[LeasedRow]:
        if self.poll.kinds:
            return most_urgent_first(reply)
        return earliest_first(rows_of(LeasedRow, reply))

    # Queues with limits

    def _finish_walk(self, claim: GroupClaim, next_due_in: int | None) -> Sequence[LeasedRow]:
        if not claim.is_limited:
            self.consumer.walk = None
        if not claim.rows and (claim.has_more or not claim.is_limited):
            self.consumer.schedule.wait_for_turn()
            return []
        self.consumer.is_rated = claim.is_rated
        waits = [each for each in (next_due_in, claim.permit_in) if each is not None]
        rows = by_turns(claim.rows)
        self._end_poll(rows, min(waits, default=None), has_more=claim.has_more)
        return rows

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
        """Claim from another kind of the queue, whose messages have no groups."""
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
