"""Bulk runs: redrive, drop or export many dead letters, at a pace, behind a canary."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import ceil
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, Error, transaction

from delayed_queue.codecs import check_kind
from delayed_queue.db.resilience import Lost, repeat, through_conflicts, write_by_halves
from delayed_queue.durations import check_duration
from delayed_queue.exceptions import InvalidConfiguration, NoSuchLetters, RunInProgress
from delayed_queue.handlers import storable
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND, from_milliseconds
from delayed_queue.queue.base import wake_at_commit
from delayed_queue.queue.fingerprints import describe
from delayed_queue.queue.models import BulkRun, DeadLetter, Message
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
EXPORT: Final = "export"
# The channel that announces a new run to workers, named like a kind.
RUNS: Final = "bulk runs"
MAX_PACE: Final = 100_000
# The defaults of a run that an operator starts: dead letters a second, and in the canary.
SAFE_PACE: Final = 100
SAFE_CANARY: Final = 20
MAX_CANARY: Final = 1_000
MAX_LETTERS: Final = 2**62
# Maximum of letters counted before a run.
PREVIEW_CAP: Final = 100_000
MAX_COUNTED: Final = 2**31 - 1
MAX_SPREAD: Final = timedelta(days=366)
_FIRST_INSTANT: Final = -(2**62)
_LAST_INSTANT: Final = 2**62
_PAGE: Final = 1_000
_FILTER: Final = ("kind", "fingerprint", "group", "reason", "key_from", "key_before")
_LOCK_WAIT_MS: Final = 2_000
_CANARY_INTERVAL_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """An operation on dead letters: which ones, and how.

    The letters are those of a kind, or of one failure of it (``fingerprint``), of a ``group`` of
    messages, whose reason starts with ``reason``, whose key is at least ``key_from`` and less than
    ``key_before`` by bytes, and that died from ``since`` until ``until`` (ms). At most ``limit`` of
    them, at a ``pace`` per second or spread ``over`` a time. ``canary`` letters are redriven
    first; the others follow only if fewer than ``canary_deaths`` of those die again of the same
    failure.
    """

    action: str
    kind: str
    fingerprint: str | None = None
    group: str | None = None
    reason: str | None = None
    key_from: str | None = None
    key_before: str | None = None
    since: int | None = None
    until: int | None = None
    pace: int | None = None
    over: timedelta | None = None  # any Duration
    limit: int | None = None
    canary: int = 0
    canary_deaths: int = 1

    def __post_init__(self) -> None:
        check_kind(self.kind)
        if self.action not in (REDRIVE, DROP, EXPORT):
            raise InvalidConfiguration(
                f"The action of a run is 'redrive' or 'drop', not {self.action!r}."
            )
        _check("The pace", self.pace, MAX_PACE)
        _check("The limit", self.limit, MAX_LETTERS)
        _check("The canary", self.canary or None, MAX_CANARY)
        if self.canary_deaths != 1 and not self.canary:
            raise InvalidConfiguration(
                "canary_deaths needs canary: the number of dead letters that go first."
            )
        _check("canary_deaths", self.canary_deaths, self.canary or 1)
        if self.canary and self.action == DROP:
            raise InvalidConfiguration("A drop takes no canary.")
        if self._since > self._until:
            raise InvalidConfiguration("until must be later than since.")
        if self.over is not None:
            over = check_duration("over", self.over, MILLISECOND, MAX_SPREAD)
            object.__setattr__(self, "over", over)
        if self.over is not None and self.pace is not None:
            raise InvalidConfiguration("Give pace or over, not both.")

    def preview(self, using: str = DEFAULT_DB_ALIAS, *, cap: int = PREVIEW_CAP) -> PreviewRow:
        """Count what a run would take among the first ``cap`` letters."""
        count = partial(
            BulkRun.objects.preview,
            **_filter_of(self), since=self._since, until=self._until, cap=cap, using=using,
        )  # fmt: skip
        found: PreviewRow = repeat(using, count)
        return found

    def start(self, *, by: str = "", why: str = "", using: str = DEFAULT_DB_ALIAS) -> int:
        """Start a run over the letters that exist now; return its id. Workers carry it out.

        With ``over`` all letters are counted first. Raises RunInProgress while another run is over
        them, NoSuchLetters when there are none.
        """
        if self.action == EXPORT:
            raise InvalidConfiguration("An export is not a run: read letters().")
        cap = PREVIEW_CAP if self.over is None else MAX_COUNTED
        seen, meant, newest = self.preview(using, cap=cap)
        if not meant and seen < cap:
            raise NoSuchLetters(f"{self.kind!r} has no dead letters that match.")
        total = min(meant, self.limit or meant)
        params: dict[str, Any] = {
            **_filter_of(self), "action": self.action, "pace": self._pace_of(total),
            "most": self.limit, "canary": self.canary, "deaths": self.canary_deaths,
            "since": self._since, "until": self._until, "newest": newest, "total": total,
            "is_cut": seen == cap, "failure": self._failure(using), "by": storable(by),
            "why": storable(why),
        }  # fmt: skip
        start = partial(BulkRun.objects.start, using, **params)
        run_id: int | None = repeat(using, start, truth=partial(_started, start, params, using))
        if run_id is None:
            raise RunInProgress(f"A run over these dead letters of {self.kind!r} is in progress.")
        wake_at_commit([RUNS], using)
        return run_id

    def letters(self, using: str = DEFAULT_DB_ALIAS) -> Iterator[DeadLetter]:
        """Read the letters that match now, page by page, in the order of their deaths."""
        newest = self.preview(using, cap=1).newest
        after_at, after, left = self._since, 0, self.limit or MAX_LETTERS
        while left:
            next_page = partial(
                BulkRun.objects.letters,
                **_filter_of(self), newest=newest, until=self._until, after_at=after_at,
                after=after, limit=_PAGE, using=using,
            )  # fmt: skip
            page = repeat(using, next_page)
            if not page:
                return
            ids = [each.id for each in page if each.is_newest is not None][:left]
            found = DeadLetter.objects.using(using).filter(pk__in=ids).order_by("died_at", "id")
            yield from repeat(using, partial(list, found.all()))
            after_at, after, left = page[-1].died_at, page[-1].id, left - len(ids)

    def _failure(self, using: str) -> str:
        """Return the name of the failure; empty for all letters of the queue."""
        if self.fingerprint is None:
            return ""
        rows = DeadLetter.objects.using(using).filter(kind=self.kind, fingerprint=self.fingerprint)
        newest = rows.order_by("-died_at", "-id").values_list("reason", "last_error")
        found = repeat(using, lambda: newest.first())
        return storable(describe(*found)) if found else ""

    @property
    def _since(self) -> int:
        return _FIRST_INSTANT if self.since is None else self.since

    @property
    def _until(self) -> int:
        return _LAST_INSTANT if self.until is None else self.until

    def _pace_of(self, total: int) -> float | None:
        return self.pace if self.over is None else min(total / self.over.total_seconds(), MAX_PACE)


def _filter_of(plan: BulkPlan | RunRow) -> dict[str, Any]:
    """Return the letters that a plan or its run takes, as the statements name them."""
    return {name: getattr(plan, name) for name in _FILTER}


def _check(name: str, value: int | None, most: int) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= most):
        raise InvalidConfiguration(f"{name} must be a whole number from 1 to {most:,}.")


def _started(
    start: Callable[[], int | None], params: Mapping[str, Any], using: str, lost: Lost
) -> int | None:
    """Return the run that a lost try has started, or start it."""
    mine = BulkRun.objects.using(using).filter(
        **{name: params[name] for name in ("action", *_FILTER)},
        newest_id=params["newest"], started_by=params["by"], why=params["why"],
        created_at__gte=from_milliseconds(lost.since),
    )  # fmt: skip
    if (run := mine.order_by("id").last()) is not None:
        return run.pk
    if not lost.is_over:
        raise lost.unknown()
    return start()


_SWITCHES: Final = {
    "pause": (PAUSED, [RUNNING]),
    "resume": (RUNNING, [PAUSED]),
    "cancel": (CANCELLED, [RUNNING, PAUSED]),
}


def switch_run(run_id: int, switch: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Pause, resume or cancel a run; False when its state does not allow it."""
    state, states = _SWITCHES[switch]
    change = partial(BulkRun.objects.switch, run_id, state, states, using=using)

    def truth(lost: Lost) -> bool:
        if change() or BulkRun.objects.using(using).filter(pk=run_id, state=state).exists():
            return True
        raise lost.unknown()

    switched: bool = repeat(using, change, truth=truth)
    if switched and state == RUNNING:
        wake_at_commit([RUNS], using)
    return switched


def step(using: str = DEFAULT_DB_ALIAS) -> bool:
    """Carry out the next batch of a run; False if none is due."""
    return through_conflicts(partial(_step, using))


def _step(using: str) -> bool:
    with transaction.atomic(using=using):
        Message.objects.limit_waits(_LOCK_WAIT_MS, using=using)
        run = BulkRun.objects.lock_next(using=using)
        if run is not None:
            Batch(run, using).carry_out()
    return run is not None


class Batch:
    """One transaction of a run, which is locked."""

    def __init__(self, run: RunRow, using: str) -> None:
        self.run = run
        self.using = using
        # The failures of the canary, by key.
        self.canary_keys: dict[str, str] = json.loads(run.canary_keys)
        self.is_testing = run.canary > 0 and not run.is_canary_over

    def carry_out(self) -> None:
        if self.is_testing and len(self.canary_keys) >= self.run.canary:
            self._judge_canary()
        elif self._room() == 0:
            self._advance(state=DONE)
        else:
            run = self.run
            letters = BulkRun.objects.letters(
                **_filter_of(run), newest=run.newest, until=run.until, after_at=run.last_died_at,
                after=run.last_id, limit=self._room(), using=self.using,
            )  # fmt: skip
            self._handle(letters)

    def _room(self) -> int:
        """Return the maximum of letters in this batch."""
        run, size = self.run, DeadLetter.objects.batch_size(self.run.kind, using=self.using)
        rooms = [size, ceil(run.pace) if run.pace else size]
        if run.most is not None:
            rooms.append(max(run.most - run.done, 0))
        if self.is_testing:
            rooms.append(run.canary - len(self.canary_keys))
        return min(rooms)

    def _handle(self, letters: list[MeantRow]) -> None:
        if not letters:
            self._advance(state=DONE)
            return
        meant = [each for each in letters if each.is_newest is not None]
        if self.run.action == DROP:
            done = sum(write_by_halves(meant, self._drop, self._refused))
        else:
            parts = write_by_halves(meant, self._redrive, self._refused)
            redriven = {key: failure for part in parts for key, failure in part.items()}
            done = len(redriven)
            if self.is_testing:
                self.canary_keys |= redriven
        wait = ceil(done * 1000 / self.run.pace) if self.run.pace else 0
        self._advance(last=letters[-1], done=done, skipped=len(meant) - done, wait=wait)

    def _refused(self, letter: MeantRow, error: Error) -> None:
        """Log a letter that the database refuses to redrive or drop, and skip it."""
        fields = {"run": self.run.id, "kind": self.run.kind, "key": letter.key}
        log(logging.WARNING, "letter_refused", **fields, error=described(error))

    def _redrive(self, meant: Sequence[MeantRow]) -> dict[str, str]:
        """Redrive the newest letter of each key; return the failures of those redriven, by key."""
        letters = {each.id: each for each in meant if each.is_newest}
        if not letters:
            return {}
        with transaction.atomic(using=self.using):
            rows = DeadLetter.objects.redrive(list(letters), kind=self.run.kind, using=self.using)
        if rows:
            wake_at_commit([self.run.kind], self.using)
        gone = [letters[row.id] for row in rows if row.created is not None]
        return {each.key: each.fingerprint for each in gone}

    def _drop(self, meant: Sequence[MeantRow]) -> int:
        with transaction.atomic(using=self.using):
            return DeadLetter.objects.drop([each.id for each in meant], using=self.using)

    def _judge_canary(self) -> None:
        run = self.run
        keys = self.canary_keys
        left, dead = BulkRun.objects.canary(run.kind, keys, run.newest, using=self.using)
        if dead >= run.canary_deaths:
            note = f"{dead} of the {len(keys)} redriven first died of the same failure."
            self._advance(state=STOPPED, note=note)
        else:
            wait = _CANARY_INTERVAL_MS if left else 0
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
