"""The overview: every queue in one line, the most overdue first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from delayed_queue.admin.base import QueueModelAdmin
from delayed_queue.admin.charts import Values, drawn, sparkline
from delayed_queue.admin.filters import KIND, valid_kind
from delayed_queue.admin.formats import counted, dotted, human, link, number, per_second
from delayed_queue.admin.history import Figure, a_minute, figure_of
from delayed_queue.admin.queues import PAUSE_QUEUE, SWITCHES, pause_of, paused_rows
from delayed_queue.admin.rows import DatabaseClock
from delayed_queue.conf import get_settings
from delayed_queue.models import QueueOverview, Worker
from delayed_queue.observe.history import MINUTE, Step, trends
from delayed_queue.observe.lateness import Reason, is_late, why_late
from delayed_queue.observe.overview import (
    MAX_KINDS,
    Count,
    QueueDepth,
    estimated_depths,
    find_kinds,
    handler_of,
)
from delayed_queue.observe.snapshots import OLD, Snapshot, oldest_snapshot
from delayed_queue.observe.store import Window
from delayed_queue.observe.workers import ALIVE, LiveWorkers, Throughput

# The charts of all queues: a backlog, which may be large, has a scale of its own.
_FIGURES: Final = (
    Figure(gettext_lazy("All queues, a minute"), (
        (gettext_lazy("done"), "dq-of-due", a_minute("done")),
        (gettext_lazy("failures"), "dq-of-alarm",
         lambda step: step.failed + step.died if step.is_sampled else None),
    )),
    Figure(gettext_lazy("Due in all queues"), (
        (gettext_lazy("due"), "dq-of-leased", lambda step: step.due),
    )),
)  # fmt: skip
TREND_MINUTES: Final = 60
# Minutes until a missing sample is reported; a sample is 10 or 20 seconds late.
SAMPLED_WITHIN: Final = 3
MAX_SILENT: Final = 100
MAX_SLOW: Final = 5


@dataclass(frozen=True, slots=True)
class QueueLine:
    """One queue of the overview."""

    depth: QueueDepth
    service: Throughput
    pause: Any
    trend: Sequence[Step]
    # Why it is late.
    late: Sequence[Reason] = ()

    @property
    def query(self) -> str:
        return urlencode({KIND: self.depth.kind})

    @property
    def handler(self) -> str:
        handler = handler_of(self.depth.kind)
        return "" if handler is None else dotted(handler.path)

    @property
    def rate(self) -> str:
        return per_second(self.service.rate) if self.service.workers else ""

    @property
    def lateness(self) -> str:
        age = self.depth.oldest_due_age
        return "" if age is None else human(age)

    @property
    def due_trend(self) -> SafeString | str:
        words = _("Due in an hour: %(due)s now") % {"due": counted(self.depth.due)}
        return _spark([each.due for each in self.trend], "dq-of-due", words)

    @property
    def late_trend(self) -> SafeString | str:
        late = self.lateness or _("nothing")
        words = _("Most overdue in an hour: %(late)s now") % {"late": late}
        return _spark([each.late for each in self.trend], "dq-of-alarm", words)

    @property
    def is_idle(self) -> bool:
        """True if it has no messages, handled none within the hour and is not paused."""
        is_used = any(each.done or each.failed or each.died or each.due for each in self.trend)
        return self.depth.is_empty and self.pause is None and not is_used

    @property
    def is_late(self) -> bool:
        return bool(self.late)

    @property
    def reasons(self) -> list[tuple[str, int | None]]:
        """Why it is late, each with the dead letter that blocks.

        A pause is shown anyway, and the page names the holder of an old snapshot once.
        """
        shown = [each for each in self.late if each.name != "paused" or self.pause is None]
        old = _("an old snapshot slows claims")
        return [
            (old if each.name == "snapshot" else each.described(human), each.letter)
            for each in shown
        ]

    @property
    def is_unserved(self) -> bool:
        """True if messages wait, or will, and no live worker serves the queue."""
        counts = (self.depth.due, self.depth.scheduled, self.depth.leased)
        is_served = self.service.workers > 0 or self.pause is not None
        return any(each.value for each in counts) and not is_served

    @property
    def paused_for(self) -> str:
        return pause_of(self.pause)

    @property
    def urgency(self) -> tuple[bool, timedelta, str]:
        """The sort key: the most overdue first, queues with nothing due last, by name."""
        age = self.depth.oldest_due_age
        return (age is None, -(age or timedelta(0)), self.depth.kind)


def _spark(values: Values, css: str, words: str) -> SafeString | str:
    return sparkline(values, css, words) if any(values) else ""


def summary(lines: Sequence[QueueLine], silent: int, slow: int, *, may_view_letters: bool) -> str:
    """Return what is wrong in one line, the worst first; empty if nothing is."""
    late = sum(each.is_late and each.pause is None for each in lines)
    unserved = sum(each.is_unserved for each in lines)
    dead = sum(each.depth.dead.value for each in lines if may_view_letters)
    paused = sum(each.pause is not None for each in lines)
    parts = (
        (late, number(late), ngettext("%(number)s queue late", "%(number)s queues late", late)),
        (unserved, number(unserved), _("%(number)s without a worker")),
        (slow, number(slow),
         ngettext("%(number)s handler slow", "%(number)s handlers slow", slow)),
        (dead, number(dead), _("%(number)s dead")),
        (silent, counted(Count(min(silent, MAX_SILENT), silent > MAX_SILENT)),
         ngettext("%(number)s worker silent", "%(number)s workers silent", silent)),
        (paused, number(paused), _("%(number)s paused")),
    )  # fmt: skip
    return ", ".join(words % {"number": shown} for number, shown, words in parts if number)


def queues_view(model_admin: QueueModelAdmin, request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        rows, above = paused_rows(model_admin.writer(request)), link(request.path, _("Queues"))
        return model_admin.press(request, SWITCHES, rows, lambda v: [valid_kind(v)], above=above)
    using = model_admin.get_queryset(request).db
    pauses = {row.kind: row for row in paused_rows(using)[: MAX_KINDS + 1]}
    kinds, is_cut = find_kinds(using, also=list(pauses))
    found, now, last = trends(kinds, TREND_MINUTES, using=using)
    found = {kind: since_sampled(steps) for kind, steps in found.items()}
    live = Worker.objects.live(using=using)
    snapshot = oldest_snapshot(using)
    old = snapshot if snapshot is not None and snapshot.is_older_than(OLD) else None
    lines = _lines(kinds, found, pauses, live, snapshot, using)
    may_view_letters = model_admin.may(request, "delayed_queue.view_deadletter")
    silent = _silent_workers(using)
    wrong = summary(lines, silent, live.slow, may_view_letters=may_view_letters)
    context = {
        "title": wrong or _("All queues in order"),
        "opts": QueueOverview._meta,
        "lines": [each for each in lines if not each.is_idle],
        "idle": [each for each in lines if each.is_idle],
        "figures": _all_queues(list(found.values())),
        "unsampled": _unsampled(now, last),
        "snapshot": old,
        "snapshot_holder": old and holder_of(old),
        "slow": [(each, human(each.age)) for each in live.running if each.is_slow][:MAX_SLOW],
        "is_cut": is_cut,
        "max_kinds": MAX_KINDS,
        "may_view_letters": may_view_letters,
        "may_view_workers": model_admin.may(request, "delayed_queue.view_worker"),
        "may_pause": model_admin.may(request, PAUSE_QUEUE),
    }
    return model_admin.page(request, "delayed_queue/queues", context)


def since_sampled(steps: list[Step]) -> list[Step]:
    """Return the steps from the first that a worker sampled, at least two."""
    first = next((at for at, each in enumerate(steps) if each.is_sampled), len(steps))
    return steps[min(first, len(steps) - 2) :]


def _all_queues(queues: Sequence[Sequence[Step]]) -> list[dict[str, Any]]:
    """Return the charts of all queues; none where no worker took samples."""
    steps = [_sum(each) for each in zip(*queues, strict=True)]
    if not any(each.is_sampled for each in steps):
        return []
    window = Window(steps[0].minute, steps[-1].minute, 1)
    return [figure_of(each, window, steps, drawn([])) for each in _FIGURES]


def _sum(steps: Sequence[Step]) -> Step:
    """Return the counts of all queues in a minute."""
    due = sum(each.due or 0 for each in steps) if steps[0].is_sampled else None
    done, failed, died = (
        sum(getattr(each, name) for each in steps) for name in ("done", "failed", "died")
    )
    return replace(steps[0], due=due, done=done, failed=failed, died=died)


def holder_of(snapshot: Snapshot) -> str:
    age = "" if snapshot.age is None else human(snapshot.age)
    return snapshot.described(age, number(snapshot.transactions))


def _silent_workers(using: str) -> int:
    rows = Worker.objects.using(using).filter(heartbeat_at__lte=DatabaseClock(ALIVE))
    return len(rows.values_list("id")[: MAX_SILENT + 1])


def _unsampled(now: int, last: int | None) -> str:
    """Return for how long no worker has taken samples; empty if one does, or none ever did."""
    if last is None or now - last <= SAMPLED_WITHIN or get_settings().SAMPLE_RETENTION is None:
        return ""
    return human((now - last) * MINUTE)


def _lines(
    kinds: list[str],
    trend: dict[str, list[Step]],
    pauses: dict[str, Any],
    live: LiveWorkers,
    snapshot: Snapshot | None,
    using: str,
) -> list[QueueLine]:
    served, depths = live.throughput, estimated_depths(kinds, using=using)
    late = why_late(list(filter(is_late, depths)), live, snapshot, using=using)
    lines = (
        QueueLine(
            depth, served.get(depth.name.queue, Throughput()), pauses.get(depth.kind),
            trend[depth.kind], late.get(depth.kind, ()),
        )
        for depth in depths
    )  # fmt: skip
    return sorted(lines, key=lambda line: line.urgency)
