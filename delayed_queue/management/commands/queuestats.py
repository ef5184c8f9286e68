"""``manage.py queuestats``: the depths of queues."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from delayed_queue.management.arguments import arg, flag, number, one_of
from delayed_queue.management.base import QueueCommand, Row, check_queues
from delayed_queue.management.tables import lines, printable
from delayed_queue.observe.lateness import Reason, is_late, reasons_of
from delayed_queue.observe.overview import MAX_KINDS, QueueDepth, measure, name_of

MAX_CAP: Final = 1_000_000
_WATCH_SECONDS: Final = 2
_CLEAR: Final = "\x1b[H\x1b[2J"


class Command(QueueCommand):
    help = gettext_noop("Show how full the queues are. The cost is bounded.")
    arguments = (
        arg("--queue", _(
            "a queue, or a kind as name|codec; repeat for several (default: all, at most %d)"
            ) % MAX_KINDS, action="append", default=[], metavar="NAME"),
        one_of("table", "json", "names"),
        number("--cap", _("stop counting at this number (default: 10,000, less for many queues)"),
               1, MAX_CAP),
        flag("--watch", _("refresh every two seconds, until Ctrl-C")),
    )  # fmt: skip

    def handle(self, **options: Any) -> None:
        check_queues(options["queue"], options["database"])
        with suppress(KeyboardInterrupt):
            self._show(options)
            while options["watch"]:
                time.sleep(_WATCH_SECONDS)
                self._show(options)

    def _show(self, options: dict[str, Any]) -> None:
        if options["watch"] and self.stdout.isatty():
            self.stdout.write(_CLEAR, ending="")
        found, is_cut = measure(options["queue"], cap=options["cap"], using=options["database"])
        late = reasons_of(list(filter(is_late, found)), using=options["database"])
        match options["format"]:
            case "json":
                rows = [_row(each, late.get(each.kind, [])) for each in found]
                facts = {"queues": rows, "queues_left_out": is_cut}
                self.stdout.write(json.dumps(facts))
            case "names":
                self.stdout.write("\n".join(sorted({each.name.queue for each in found})))
            case _:
                table = lines(list(map(_cells, found))) if found else ["There are no queues."]
                self.stdout.write("\n".join([*table, *_late(late), *_notes(found, is_cut)]))


def _row(depth: QueueDepth, late: list[Reason]) -> Row:
    age = depth.oldest_due_age
    return {
        "queue": depth.name.queue,
        "kind": depth.kind,
        **{name: each.value for name, each in depth.counts.items()},
        "oldest_due_age_seconds": None if age is None else age.total_seconds(),
        "cut": [name for name, each in depth.counts.items() if each.is_cut],
        "late": [
            {"reason": each.name, "text": str(each), "dead_letter": each.letter} for each in late
        ],
    }


def _cells(depth: QueueDepth) -> Row:
    age = depth.oldest_due_age
    late = None if age is None else str(timedelta(seconds=int(age.total_seconds())))
    counts = {name: str(each) for name, each in depth.counts.items()}
    return {"queue": depth.name.queue, "codec": depth.name.codec, **counts, "oldest due": late}


def _late(late: dict[str, list[Reason]]) -> list[str]:
    """Return a line for each late queue."""
    said = {kind: "; ".join(map(str, reasons)) for kind, reasons in late.items()}
    return [printable(f"{name_of(kind).queue} is late: {text}", "") for kind, text in said.items()]


def _notes(found: list[QueueDepth], is_cut: bool) -> list[str]:
    has_more = any(counted.is_cut for each in found for counted in each.counts.values())
    notes = {
        "+ means that counting stopped there; --cap counts further": has_more,
        f"Only {MAX_KINDS} queues are shown; name others with --queue.": is_cut,
    }
    return [note for note, applies in notes.items() if applies]
