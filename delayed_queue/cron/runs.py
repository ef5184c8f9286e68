"""Runs of schedules: which messages are ticks, and what is recorded when they are settled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from delayed_queue.cron.store import RECORD_RUNS
from delayed_queue.db.sql import Step
from delayed_queue.messages import Envelope

DONE: Final = "done"
FAILED: Final = "failed"
DEAD: Final = "dead"
# A tick has the milliseconds of its instant after the last slash, "Run now" after a hyphen.
_MARKS: Final = frozenset("/-")
_TICK: Final = re.compile(r"(.+)/(?:[^/]+/|run-now-)(\d{13})", re.DOTALL)


class Run(NamedTuple):
    """A run of a tick that is being settled; times are seconds before the settlement."""

    envelope: Envelope
    outcome: str
    began: float | None
    ended: float


def has_ticks(envelopes: Iterable[Envelope]) -> bool:
    """Return whether any message may be a tick; in a loop over all messages, so it is short."""
    return any(each.key[-14:-13] in _MARKS for each in envelopes)


class Keyed(Protocol):
    """A message or its row."""

    @property
    def key(self) -> str: ...


def is_tick(message: Keyed) -> bool:
    return message.key[-14:-13] in _MARKS and _TICK.fullmatch(message.key) is not None


def record_step(kind: str, worker: str, runs: Sequence[Run], *, fenced: bool = True) -> Step:
    """Return the statement that records runs of the kind's schedules.

    Run it before the settlement, in the same transaction. It records only messages that are still
    under their lease, unless ``fenced`` is False: then the transaction has taken them.
    """
    found = [(each, match) for each in runs if (match := _TICK.fullmatch(each.envelope.key))]
    return RECORD_RUNS, {
        "kind": kind, "worker": worker, "now": None,
        "keys": [each.envelope.key for each, _ in found],
        "prefixes": [match[1] for _, match in found],
        "planned": [int(match[2]) for _, match in found],
        "began": [None if each.began is None else int(each.began * 1000) for each, _ in found],
        "ended": [int(each.ended * 1000) for each, _ in found],
        "outcomes": [each.outcome for each, _ in found],
        "attempts": [each.envelope.attempt for each, _ in found],
        "ids": [each.envelope.message_id if fenced else None for each, _ in found],
        "leases": [each.envelope.lease_id for each, _ in found],
    }  # fmt: skip
