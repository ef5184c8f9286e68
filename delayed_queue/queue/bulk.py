"""Bulk runs: many dead letters redriven or dropped, at a pace, behind a canary."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, transaction

from delayed_queue.codecs import check_kind
from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import through_conflicts
from delayed_queue.db.wakeups import channel_of
from delayed_queue.exceptions import InvalidConfiguration, NoSuchLetters, RunInProgress
from delayed_queue.handlers import storable
from delayed_queue.models import BulkRun, DeadLetter, Message
from delayed_queue.queue.store.bulk import (
    CANCELLED,
    DONE,
    PAUSED,
    RUNNING,
    STOPPED,
    MeantRow,
    PreviewRow,
    RunRow,
)

REDRIVE: Final = "redrive"
DROP: Final = "drop"
MAX_PACE: Final = 100_000
MAX_CANARY: Final = 1_000
MAX_LETTERS: Final = 2**62
# How far letters are counted before a run, which tells how many are left.
PREVIEW_CAP: Final = 100_000
_LOCK_WAIT_MS: Final = 2_000
_LOOK_AT_CANARY_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """Which letters, what is to be done to them, and how.

    All of a kind, or of one group of it (``fingerprint``), whose reason begins with ``reason`` and
    that died until ``until`` (ms). ``pace`` letters a second, ``limit`` at most. ``canary``: so
    many are redriven first, and the rest only when none of those has died again.
    """

    action: str
    kind: str
    fingerprint: str | None = None
    reason: str | None = None
    until: int | None = None
    pace: int | None = None
    limit: int | None = None
    canary: int = 0

    def __post_init__(self) -> None:
        check_kind(self.kind)
        if self.action not in (REDRIVE, DROP):
            raise InvalidConfiguration(f"A run redrives or drops, it cannot {self.action!r}.")
        _check("The pace", self.pace, MAX_PACE)
        _check("The limit", self.limit, MAX_LETTERS)
        _check("The canary", self.canary or None, MAX_CANARY)
        if self.canary and self.action == DROP:
            raise InvalidConfiguration("What is dropped cannot die again: no canary for a drop.")

    def preview(self, using: str = DEFAULT_DB_ALIAS) -> PreviewRow:
        """Count what a run would take, up to ``PREVIEW_CAP`` letters; nothing is changed."""
        found: PreviewRow = BulkRun.objects.preview(
            self.kind,
            self.fingerprint,
            reason=self.reason,
            until=self.until,
            cap=PREVIEW_CAP,
            using=using,
        )
        return found

    def start(self, *, by: str = "", why: str = "", using: str = DEFAULT_DB_ALIAS) -> int:
        """Have workers carry it out, of the letters there are now; return the run's id.

        Raises RunInProgress while another run is over them, NoSuchLetters when there are none.
        """
        seen, meant, newest = self.preview(using)
        is_cut = seen == PREVIEW_CAP
        if not meant and not is_cut:
            raise NoSuchLetters(f"No dead letter of {self.kind!r} is meant by that.")
        params: dict[str, Any] = {
            "action": self.action, "kind": self.kind, "fingerprint": self.fingerprint,
            "reason": self.reason, "pace": self.pace, "most": self.limit, "canary": self.canary,
            "until": self.until, "newest": newest, "total": min(meant, self.limit or meant),
            "is_cut": is_cut, "by": storable(by), "why": storable(why),
        }  # fmt: skip
        run_id: int | None = BulkRun.objects.start(using, **params)
        if run_id is None:
            raise RunInProgress(f"A run over these letters of {self.kind!r} is in progress.")
        return run_id


def _check(name: str, value: int | None, most: int) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= most):
        raise InvalidConfiguration(f"{name} must be a whole number from 1 to {most:,}.")


_SWITCHES: Final = {
    "pause": (PAUSED, [RUNNING]),
    "resume": (RUNNING, [PAUSED]),
    "cancel": (CANCELLED, [RUNNING, PAUSED]),
}


def switch_run(run_id: int, switch: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Pause, resume or cancel a run; False when it is in no state for that."""
    state, states = _SWITCHES[switch]
    switched: bool = BulkRun.objects.switch(run_id, state, states, using=using)
    return switched


def step(using: str = DEFAULT_DB_ALIAS) -> bool:
    """Carry out a batch of the run whose turn it is; return whether there was one."""
    return through_conflicts(partial(_step, using))


def _step(using: str) -> bool:
    with transaction.atomic(using=using):
        Message.objects.limit_waits(_LOCK_WAIT_MS, using=using)
        run = BulkRun.objects.lock_next(using=using)
        if run is not None:
            Batch(run, using).carry_out()
    return run is not None


class Batch:
    """One transaction's worth of a run, which is under lock."""

    def __init__(self, run: RunRow, using: str) -> None:
        self.run = run
        self.using = using
        self.canary_keys: list[str] = json.loads(run.canary_keys)
        self.is_testing = run.canary > 0 and not run.is_canary_over

    def carry_out(self) -> None:
        if self.is_testing and len(self.canary_keys) >= self.run.canary:
            self._judge_canary()
        elif self._room() == 0:
            self._advance(state=DONE)
        else:
            self._handle(BulkRun.objects.letters(self.run, self._room(), using=self.using))

    def _room(self) -> int:
        """Return how many letters may be handled in this batch."""
        run, size = self.run, DeadLetter.objects.batch_size(self.run.kind, using=self.using)
        rooms = [size, ceil(run.pace) if run.pace else size]
        if run.most is not None:
            rooms.append(max(run.most - run.done, 0))
        if self.is_testing:
            rooms.append(run.canary - len(self.canary_keys))
        return min(rooms)

    def _handle(self, letters: list[MeantRow]) -> None:
        if not letters:
            # Also a canary that was all there is: nothing is left to hold back.
            self._advance(state=DONE)
            return
        meant = [each for each in letters if each.is_newest is not None]
        done = self._drop(meant) if self.run.action == DROP else self._redrive(meant)
        if self.is_testing:
            self.canary_keys += done
        self._advance(
            last=letters[-1],
            done=len(done),
            skipped=len(meant) - len(done),
            wait=ceil(len(done) * 1000 / self.run.pace) if self.run.pace else 0,
        )

    def _redrive(self, meant: list[MeantRow]) -> list[str]:
        """Redrive the newest of each key; return the keys of those that went."""
        keys = {each.id: each.key for each in meant if each.is_newest}
        if not keys:
            return []
        rows = DeadLetter.objects.redrive(list(keys), kind=self.run.kind, using=self.using)
        if rows and get_settings().NOTIFY:
            channel = channel_of(self.run.kind)
            wake = partial(Message.objects.notify, channel, using=self.using)
            transaction.on_commit(wake, using=self.using, robust=True)
        return [keys[row.id] for row in rows if row.created is not None]

    def _drop(self, meant: list[MeantRow]) -> list[str]:
        gone = DeadLetter.objects.drop([each.id for each in meant], using=self.using)
        return [each.key for each in meant][:gone]

    def _judge_canary(self) -> None:
        run = self.run
        left, dead = BulkRun.objects.canary(
            run.kind, self.canary_keys, run.newest, using=self.using
        )
        if dead:
            note = f"{dead} of the {len(self.canary_keys)} redriven first died again."
            self._advance(state=STOPPED, note=note)
        else:
            wait = _LOOK_AT_CANARY_MS if left else 0
            self._advance(is_canary_over=not left, wait=wait)

    def _advance(self, *, last: MeantRow | None = None, **to: Any) -> None:
        run = self.run
        values = {
            "last_died_at": last.died_at if last else run.last_died_at,
            "last_id": last.id if last else run.last_id,
            "done": 0, "skipped": 0, "is_canary_over": run.is_canary_over, "state": RUNNING,
            "note": "", "wait": 0, **to,
        }  # fmt: skip
        BulkRun.objects.advance(run.id, canary_keys=self.canary_keys, using=self.using, **values)
