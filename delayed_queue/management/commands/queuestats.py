"""``manage.py queuestats``: the depths of queues."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop

from delayed_queue.management.arguments import arg, count, one_of, seconds
from delayed_queue.management.base import QueueCommand, Row
from delayed_queue.management.tables import lines
from delayed_queue.messages import MILLISECOND
from delayed_queue.observe.overview import MAX_KINDS, QueueDepth, measure

MAX_CAP: Final = 1_000_000
_CLEAR: Final = "\x1b[H\x1b[2J"


class Command(QueueCommand):
    help = gettext_noop("Show how full the queues are. The cost is bounded.")
    arguments = (
        arg("--queue", gettext_lazy(
            "a queue, or a kind as name|codec; repeat for several (default: all, at most %d)"
            ) % MAX_KINDS, action="append", default=[], metavar="NAME"),
        one_of("table", "json", "names"),
        arg("--cap", gettext_lazy(
            "stop counting at this number (default: 10,000, less for many queues)"),
            type=count(1, MAX_CAP), metavar="N"),
        arg("--watch", gettext_lazy("repeat at this interval until stopped"),
            type=seconds(MILLISECOND), metavar="SECONDS"),
    )  # fmt: skip

    def handle(self, **options: Any) -> None:
        pause = threading.Event()
        try:
            self._show(options)
            while options["watch"] is not None and not pause.wait(options["watch"].total_seconds()):
                self._show(options)
        except KeyboardInterrupt:
            return

    def _show(self, options: dict[str, Any]) -> None:
        found, is_cut = measure(options["queue"], cap=options["cap"], using=options["database"])
        if options["format"] == "json":
            facts = {"queues": list(map(_row, found)), "queues_left_out": is_cut}
            self.stdout.write(json.dumps(facts))
        elif options["format"] == "names":
            self.stdout.write("\n".join(sorted({each.name.queue for each in found})))
        else:
            clear = _CLEAR if options["watch"] and self.stdout.isatty() else ""
            table = lines(list(map(_cells, found))) if found else [_("There are no queues.")]
            self.stdout.write(clear + "\n".join([*table, *_notes(found, is_cut)]))
        self.stdout.flush()


def _row(depth: QueueDepth) -> Row:
    age = depth.oldest_due_age
    return {
        "queue": depth.name.queue,
        "kind": depth.kind,
        **{name: each.value for name, each in depth.counts.items()},
        "oldest_due_age_seconds": None if age is None else age.total_seconds(),
        "cut": [name for name, each in depth.counts.items() if each.is_cut],
    }


def _cells(depth: QueueDepth) -> Row:
    age = depth.oldest_due_age
    late = None if age is None else str(timedelta(seconds=int(age.total_seconds())))
    counts = {name: str(each) for name, each in depth.counts.items()}
    return {"queue": depth.name.queue, "codec": depth.name.codec, **counts, "oldest due": late}


def _notes(found: list[QueueDepth], is_cut: bool) -> list[str]:
    notes = []
    if any(counted.is_cut for each in found for counted in each.counts.values()):
        notes.append(_("+ means that counting stopped there; --cap counts further"))
    if is_cut:
        notes.append(_("Only %s queues are shown; name others with --queue.") % MAX_KINDS)
    return notes
