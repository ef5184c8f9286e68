"""``manage.py queuedead``: show dead letters and their failures; redrive, drop or export them."""

from __future__ import annotations

import getpass
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import CommandError
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from delayed_queue.conf import get_settings
from delayed_queue.db.clock import ago
from delayed_queue.exceptions import DelayedQueueError, RunInProgress
from delayed_queue.management.arguments import (
    FORMAT,
    OF_QUEUE,
    QUEUE,
    arg,
    at_most,
    count,
    duration,
    flag,
    number,
    text,
)
from delayed_queue.management.base import Outcome, Row, Verb, VerbCommand, queue_of, wrong_usage
from delayed_queue.management.tables import described, printable
from delayed_queue.messages import MILLISECOND, from_milliseconds
from delayed_queue.models import BulkRun, DeadLetter
from delayed_queue.queue import bulk
from delayed_queue.queue.fingerprints import describe

MAX_ROWS: Final = 5_000
# EX_TEMPFAIL of sysexits: try again later.
TRY_LATER: Final = 75
_BATCH: Final = 1_000
_MODULE: Final = re.compile(r"^(\w+\.)+(?=\w+(:| |$))")
_MAX_KINDS: Final = 10_000
_MAX_RUNS: Final = 25


def _groups(options: dict[str, Any]) -> list[Row]:
    kind, is_json = _kind(options), options["format"] == "json"
    rows = DeadLetter.objects.groups(
        None if kind is None else [kind], shown=options["limit"], using=options["database"]
    )
    failures = (describe(row.reason, row.error) for row in rows)
    return [
        {
            "failure": row.fingerprint, "queue": row.kind, "dead": row.letters,
            "last": from_milliseconds(row.last_at),
            # A table is narrow: it leaves out the module of the error's class.
            "error": failure if is_json else _MODULE.sub("", failure),
            "first": from_milliseconds(row.first_at), "newest_id": row.newest,
        }
        for row, failure in zip(rows, failures, strict=True)
    ]  # fmt: skip


def _list(options: dict[str, Any]) -> list[Row]:
    kind, names = _kind(options), {"failure": "fingerprint", "group": "group"}
    chosen = {column: options[name] for name, column in names.items() if options[name] is not None}
    rows = DeadLetter.objects.using(options["database"]).defer("payload", "headers")
    if chosen and kind is None:
        raise wrong_usage("Failures and groups belong to a queue: add --queue.")
    if kind is None:
        rows = rows.order_by("-id")
    else:
        rows = rows.filter(kind=kind, **chosen).order_by("-died_at", "-id")
    return [_row(letter) for letter in rows[: options["limit"]]]


def _show(options: dict[str, Any]) -> Outcome | list[Row]:
    letter = DeadLetter.objects.using(options["database"]).filter(pk=options["id"]).first()
    if letter is None:
        raise CommandError(f"There is no dead letter {options['id']}.")
    if options["format"] == "json":
        return [_row(letter) | _errors(letter)]
    error = printable(letter.last_error or "No error was stored.")
    return Outcome(f"{described(_row(letter))}\n\n{error}", {})


def _start(options: dict[str, Any]) -> Outcome:
    using, plan = options["database"], _plan(options)
    found = plan.preview(using)
    more = "+" if found.seen == bulk.PREVIEW_CAP else ""
    facts = {"meant": found.meant, "is_capped": bool(more)}
    if options["dry_run"]:
        return Outcome(_trial(found.meant, more), {"run": None, **facts})
    run_id = plan.start(by=getpass.getuser(), why=options["why"], using=using)
    letters = _letters(found.meant, more)
    text = f'Run {run_id} has started: {letters}. "queuedead runs" shows its progress.'
    return Outcome(text, {"run": run_id, **facts})


def _export(options: dict[str, Any]) -> Iterator[str]:
    return map(_exported, _plan(options).letters(options["database"]))


def _prune(options: dict[str, Any]) -> Outcome:
    using, age, kind = options["database"], _age(options), _kind(options)
    kinds = DeadLetter.objects.kinds(_MAX_KINDS, using=using) if kind is None else [kind]
    if options["dry_run"]:
        until = ago(age, using)
        plans = [bulk.BulkPlan("drop", each, until=until) for each in kinds]
        meant = sum(each.preview(using, cap=bulk.MAX_COUNTED).meant for each in plans)
        return Outcome(_trial(meant), {"meant": meant})
    pruned = sum(_pruned(each, age, using) for each in kinds)
    return Outcome(f"Deleted: {_letters(pruned)}.", {"deleted": pruned})


def _pruned(kind: str, age: timedelta, using: str) -> int:
    total, batch = 0, _BATCH
    while batch == _BATCH:
        batch = DeadLetter.objects.prune(kind, age // MILLISECOND, limit=_BATCH, using=using)
        total += batch
    return total


def _age(options: dict[str, Any]) -> timedelta:
    age: timedelta | None = options["older_than"] or get_settings().DEAD_LETTER_RETENTION
    if age is None:
        text = "Dead letters are kept for good (DEAD_LETTER_RETENTION): add --older-than."
        raise wrong_usage(text)
    return age


def _runs(options: dict[str, Any]) -> list[Row]:
    return [
        {
            "run": row.id, "action": row.action, "queue": row.kind, "state": row.state,
            "done": row.done, "left": max(row.total - row.done - row.skipped, 0),
            "pace": row.pace, "note": row.note, "failure": row.fingerprint, "skipped": row.skipped,
            "by": row.started_by, "why": row.why,
        }
        for row in BulkRun.objects.using(options["database"]).order_by("-id")[:_MAX_RUNS]
    ]  # fmt: skip


def _switch(options: dict[str, Any]) -> Outcome:
    run, verb = options["id"], options["command"]
    if not bulk.switch_run(run, verb, using=options["database"]):
        text = f'There is no run {run} that "{verb}" applies to. "queuedead runs" lists the runs.'
        raise CommandError(text)
    return Outcome(f"Run {run}: {verb} done.", {"run": run})


def _trial(number: int, more: str = "") -> str:
    return f"{_letters(number, more)} would be taken; nothing was changed."


def _letters(number: int, more: str = "") -> str:
    return f"{number:,}{more} dead letter{'' if number == 1 else 's'}"


def _plan(options: dict[str, Any]) -> bulk.BulkPlan:
    names = ("group", "reason", "key_from", "key_before", "over", "limit", "canary_deaths")
    given = {name: options[name] for name in names if name in options}
    if options["command"] != bulk.EXPORT:
        given["pace"] = _safe(options["pace"], bulk.SAFE_PACE if options["over"] is None else 0)
        few = bulk.SAFE_CANARY if options["command"] == bulk.REDRIVE else 0
        given["canary"] = _safe(options["canary"], few) or 0
    for name, age in (("since", options["newer_than"]), ("until", options["older_than"])):
        given[name] = None if age is None else ago(age, options["database"])
    kind = queue_of(options).kind
    return bulk.BulkPlan(options["command"], kind, options["failure"], **given)


def _safe(given: int | None, default: int) -> int | None:
    """Return the default for no option, and None for 0."""
    return (default if given is None else given) or None


def _kind(options: dict[str, Any]) -> str | None:
    return None if options["queue"] is None else queue_of(options).kind


def _row(letter: DeadLetter) -> Row:
    return {
        "id": letter.id, "queue": letter.kind, "key": letter.key, "died": letter.died_at,
        "tries": letter.attempts, "reason": letter.reason,
    }  # fmt: skip


def _errors(letter: DeadLetter) -> Row:
    return {"first_error": letter.first_error, "last_error": letter.last_error}


def _exported(letter: DeadLetter) -> str:
    payload = bytes(letter.payload)
    try:
        content = {"payload": payload.decode()}
    except UnicodeDecodeError:
        content = {"payload_base64": b64encode(payload).decode()}
    more = {
        "failure": letter.fingerprint,
        "group": letter.group,
        "headers": letter.headers,
        **content,
    }
    return json.dumps(_row(letter) | more | _errors(letter), default=str)


_ID: Final = arg("id", type=count(1, bulk.MAX_LETTERS))
_LIMIT: Final = at_most(25, MAX_ROWS)
_CAUSE: Final = (
    text("--failure", "ID", _('only this failure: its id from "groups"')),
    text("--group", "NAME", _("of one group of messages")),
)
_FILTER: Final = (
    QUEUE,
    *_CAUSE,
    text("--reason", "TEXT", _("only reasons that start with this text")),
    text("--key-from", "KEY", _("only this key and later ones")),
    text("--key-before", "KEY", _("only keys before this one")),
    duration("--newer-than", _("only dead letters younger than this, for example 30m or 2d")),
    duration("--older-than", _("only dead letters older than this, for example 30m or 2d")),
    number("--limit", _("at most this many"), 1, bulk.MAX_LETTERS),
)  # fmt: skip
_TRIAL: Final = (flag("--dry-run", _("only show how many would be taken")), FORMAT)
_RUN: Final = (
    *_FILTER,
    number("--pace", _("dead letters per second; 0: no limit (default: %s)") % bulk.SAFE_PACE,
           0, bulk.MAX_PACE),
    duration("--over", _("spread over this time, for example 2h")),
    number("--canary", _(
        "redrive this many first; continue only if they do not die of the same failure; "
        "0: no canary (default: %s)") % bulk.SAFE_CANARY, 0, bulk.MAX_CANARY),
    number("--canary-deaths", _(
        "stop the run if this many of the canary die again (default: 1)"),
        1, bulk.MAX_CANARY, default=1),
    arg("--why", _("stored with the run"), default="", metavar="TEXT"),
    *_TRIAL,
)  # fmt: skip


class Command(VerbCommand):
    help = gettext_noop(
        "Show dead letters and their failures; let workers redrive or drop them, at a chosen rate."
    )
    verbs = {
        "groups": Verb(
            _("failures by cause, the most recent first"), _groups, (OF_QUEUE, _LIMIT, FORMAT),
            columns="failure queue dead last error",
        ),
        "list": Verb(
            _("dead letters, the newest first"), _list, (OF_QUEUE, _LIMIT, FORMAT, *_CAUSE)
        ),
        "show": Verb(_("one dead letter with its errors"), _show, (_ID, FORMAT)),
        "redrive": Verb(_("redrive all dead letters of a failure or a queue"), _start, _RUN),
        "drop": Verb(_("drop all dead letters of a failure or a queue"), _start, _RUN),
        "export": Verb(
            _("export dead letters as lines of JSON"), _export,
            _FILTER,
        ),
        "prune": Verb(
            _("delete old dead letters now"), _prune,
            (OF_QUEUE, duration("--older-than", _(
                "age, for example 30d (default: DEAD_LETTER_RETENTION)")), *_TRIAL),
        ),
        "runs": Verb(
            _("bulk runs and their progress, the newest first"), _runs, (FORMAT,),
            columns="run action queue state done left pace note",
        ),
        "pause": Verb(_("pause a bulk run"), _switch, (_ID, FORMAT)),
        "resume": Verb(_("resume a bulk run"), _switch, (_ID, FORMAT)),
        "cancel": Verb(_("cancel a bulk run"), _switch, (_ID, FORMAT)),
    }  # fmt: skip

    def exit_code(self, error: DelayedQueueError) -> int:
        return TRY_LATER if isinstance(error, RunInProgress) else super().exit_code(error)
