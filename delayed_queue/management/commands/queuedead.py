"""``manage.py queuedead``: what is dead and why, and redriving, dropping or exporting it."""

from __future__ import annotations

import getpass
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandError
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop, ngettext

from delayed_queue.conf import get_settings
from delayed_queue.db.clock import ago
from delayed_queue.exceptions import NoSuchLetters, RunInProgress
from delayed_queue.management.arguments import (
    FORMAT,
    OF_QUEUE,
    QUEUE,
    arg,
    count,
    flag,
    text,
)
from delayed_queue.management.base import WRONG_USAGE, Told, Verb, VerbCommand, queue_named
from delayed_queue.management.tables import described, printable
from delayed_queue.messages import MILLISECOND, from_milliseconds
from delayed_queue.models import BulkRun, DeadLetter
from delayed_queue.queue.bulk import (
    MAX_CANARY,
    MAX_COUNTED,
    MAX_LETTERS,
    MAX_PACE,
    PREVIEW_CAP,
    BulkPlan,
    switch_run,
)
from delayed_queue.queue.fingerprints import describe
from delayed_queue.queue.store.dead_letters import GroupRow
from delayed_queue.retries import parse_duration

MAX_ROWS: Final = 5_000
# As sysexits has it: try again later.
TRY_LATER: Final = 75
_BATCH: Final = 1_000
_MODULE: Final = re.compile(r"^(\w+\.)+(?=\w+(:| |$))")
_MAX_KINDS: Final = 10_000


def _show(options: dict[str, Any]) -> Told | list[dict[str, Any]]:
    letter = DeadLetter.objects.using(options["database"]).filter(pk=options["id"]).first()
    if letter is None:
        raise CommandError(_("There is no dead letter %s.") % options["id"], returncode=1)
    row = _letter(letter)
    if options["format"] == "json":
        return [{**row, "first_error": letter.first_error, "last_error": letter.last_error}]
    error = printable(letter.last_error or str(_("No error was stored.")))
    return Told(f"{described(row)}\n\n{error}", row)


def _begin(options: dict[str, Any]) -> Told:
    using, plan = options["database"], _plan(options)
    found = plan.preview(using)
    more = "+" if found.seen == PREVIEW_CAP else ""
    facts = {"meant": found.meant, "is_capped": bool(more)}
    if options["dry_run"]:
        return Told(_meant(found.meant, more), {"run": None, **facts})
    try:
        run_id = plan.start(by=getpass.getuser(), why=options["why"], using=using)
    except RunInProgress as error:
        raise CommandError(str(error), returncode=TRY_LATER) from error
    except NoSuchLetters as error:
        raise CommandError(str(error), returncode=1) from error
    words = ngettext(
        'Run %(run)s has started: %(meant)s dead letter. "queuedead runs" shows its progress.',
        'Run %(run)s has started: %(meant)s dead letters. "queuedead runs" shows its progress.',
        found.meant,
    )
    said = words % {"run": run_id, "meant": f"{found.meant:,}{more}"}
    return Told(said, {"run": run_id, **facts})


def _export(options: dict[str, Any]) -> Iterator[str]:
    letters, name = _plan(options).letters(options["database"]), options["output"]
    if name is None:
        return map(_exported, letters)
    try:
        # A file that exists may be the only copy of what was dropped since.
        with Path(name).open("x", encoding="utf-8") as file:
            written = sum(file.write(f"{_exported(each)}\n") > 0 for each in letters)
    except OSError as error:
        said = _("%(file)s cannot be written: %(error)s.")
        facts = {"file": name, "error": error.strerror}
        raise CommandError(said % facts, returncode=1) from error
    words = ngettext(
        "%(number)s dead letter was written to %(file)s.",
        "%(number)s dead letters were written to %(file)s.",
        written,
    )
    options["stderr"].write(words % {"number": f"{written:,}", "file": name})
    return iter(())


def _prune(options: dict[str, Any]) -> Told:
    using, age, kind = options["database"], _age(options), _kind(options)
    kinds = DeadLetter.objects.kinds(_MAX_KINDS, using=using) if kind is None else [kind]
    if options["dry_run"]:
        until = ago(age, using)
        plans = [BulkPlan("drop", each, until=until) for each in kinds]
        meant = sum(each.preview(using, cap=MAX_COUNTED).meant for each in plans)
        return Told(_meant(meant), {"meant": meant})
    pruned = sum(_pruned(each, age, using) for each in kinds)
    said = ngettext("%s dead letter was deleted.", "%s dead letters were deleted.", pruned)
    return Told(said % f"{pruned:,}", {"deleted": pruned})


def _switch(options: dict[str, Any]) -> Told:
    run_id, verb = options["id"], options["command"]
    if not switch_run(run_id, verb, using=options["database"]):
        said = _(
            'There is no run %(run)s that "%(command)s" applies to. "queuedead '
            'runs" lists the runs.'
        )
        raise CommandError(said % {"run": run_id, "command": verb}, returncode=1)
    facts = {"run": run_id, "command": verb}
    return Told(_("Run %(run)s: %(command)s done.") % facts, {"run": run_id})


def _meant(number: int, more: str = "") -> str:
    said = ngettext(
        "%s dead letter would be taken; nothing was changed.",
        "%s dead letters would be taken; nothing was changed.",
        number,
    )
    return said % f"{number:,}{more}"


def _plan(options: dict[str, Any]) -> BulkPlan:
    over = options.get("over")
    return BulkPlan(
        options["command"],
        queue_named(options["queue"], options["database"]).kind,
        options["group"],
        options["reason"],
        options["key_from"],
        options["key_before"],
        _ago(options, "newer_than"),
        _ago(options, "older_than"),
        options.get("pace"),
        None if over is None else parse_duration(over),
        options["limit"],
        options.get("canary", 0),
        options.get("canary_deaths", 1),
    )


def _ago(options: dict[str, Any], name: str) -> int | None:
    duration = options[name]
    return None if duration is None else ago(parse_duration(duration), options["database"])


def _age(options: dict[str, Any]) -> timedelta:
    if options["older_than"] is not None:
        return parse_duration(options["older_than"])
    kept = get_settings().DEAD_LETTER_RETENTION
    if kept is None:
        raise CommandError(
            _("Dead letters are kept for good (DEAD_LETTER_RETENTION): add --older-than."),
            returncode=WRONG_USAGE,
        )
    return kept


def _pruned(kind: str, age: timedelta, using: str) -> int:
    total, batch = 0, _BATCH
    while batch == _BATCH:
        batch = DeadLetter.objects.prune(kind, age // MILLISECOND, limit=_BATCH, using=using)
        total += batch
    return total


def _exported(letter: DeadLetter) -> str:
    payload = bytes(letter.payload)
    try:
        content = {"payload": payload.decode()}
    except UnicodeDecodeError:
        content = {"payload_base64": b64encode(payload).decode()}
    row = {
        **_letter(letter), "group": letter.fingerprint, "headers": letter.headers, **content,
        "first_error": letter.first_error, "last_error": letter.last_error,
    }  # fmt: skip
    return json.dumps(row, default=str)


def _kind(options: dict[str, Any]) -> str | None:
    name = options["queue"]
    return None if name is None else queue_named(name, options["database"]).kind


def _groups(options: dict[str, Any]) -> list[dict[str, Any]]:
    kind = _kind(options)
    rows = DeadLetter.objects.groups(
        None if kind is None else [kind], shown=options["limit"], using=options["database"]
    )
    return [
        {
            "group": row.fingerprint, "queue": row.kind, "dead": row.letters,
            "last": from_milliseconds(row.last_at), "failure": _failure(row, options["format"]),
            **({"first": from_milliseconds(row.first_at), "newest_id": row.newest}
               if options["format"] == "json" else {}),
        }
        for row in rows
    ]  # fmt: skip


def _failure(row: GroupRow, style: str) -> str:
    """Return what failed and where; in a table, which is narrow, without the class's module."""
    said = describe(row.reason, row.error)
    return said if style == "json" else _MODULE.sub("", said)


def _letters(options: dict[str, Any]) -> list[dict[str, Any]]:
    kind, group = _kind(options), options["group"]
    rows = DeadLetter.objects.using(options["database"]).defer("payload", "headers")
    if group is not None and kind is None:
        raise CommandError(_("A failure belongs to a queue: add --queue."), returncode=WRONG_USAGE)
    if kind is not None:
        rows = rows.filter(kind=kind).order_by("-died_at", "-id")
    else:
        rows = rows.order_by("-id")
    if group is not None:
        rows = rows.filter(fingerprint=group)
    return [_letter(row) for row in rows[: options["limit"]]]


def _letter(row: DeadLetter) -> dict[str, Any]:
    return {
        "id": row.id, "queue": row.kind, "key": row.key, "died": row.died_at,
        "tries": row.attempts, "reason": row.reason,
    }  # fmt: skip


def _runs(options: dict[str, Any]) -> list[dict[str, Any]]:
    rows = BulkRun.objects.using(options["database"]).order_by("-id")[:25]
    return [
        {
            "run": row.id, "action": row.action, "queue": row.kind, "state": row.state,
            "done": row.done, "left": max(row.total - row.done - row.skipped, 0),
            "pace": row.pace, "note": row.note,
            **({"group": row.fingerprint, "skipped": row.skipped, "by": row.started_by,
                "why": row.why} if options["format"] == "json" else {}),
        }
        for row in rows
    ]  # fmt: skip


_ID: Final = arg("id", type=count(1, MAX_LETTERS))
_LIMIT: Final = arg(
    "--limit", _("rows (default: 25)"), type=count(1, MAX_ROWS), default=25, metavar="N"
)
_FILTER: Final = (
    QUEUE,
    text("--group", "ID", _('only this failure: its id from "groups"')),
    text("--reason", "TEXT", _("only reasons that start with this text")),
    text("--key-from", "KEY", _("only this key and later ones")),
    text("--key-before", "KEY", _("only keys before this one")),
    text("--newer-than", "DURATION",
         _("only dead letters younger than this, for example 30m or 2d")),
    text("--older-than", "DURATION",
         _("only dead letters older than this, for example 30m or 2d")),
    arg("--limit", _("at most this many"), type=count(1, MAX_LETTERS), metavar="N"),
)  # fmt: skip
_TRIAL: Final = (flag("--dry-run", _("only show how many would be taken")), FORMAT)
_RUN: Final = (
    *_FILTER,
    arg("--pace", _("dead letters per second (default: no limit)"),
        type=count(1, MAX_PACE), metavar="N"),
    text("--over", "DURATION", _("spread over this time, for example 2h")),
    arg("--canary", _(
        "redrive this many first; continue only if they do not die of the same failure"),
        type=count(1, MAX_CANARY), default=0, metavar="N"),
    arg("--canary-deaths", _(
        "stop the run if this many of the canary die again (default: 1)"),
        type=count(1, MAX_CANARY), default=1, metavar="N"),
    arg("--why", _("stored with the run"), default="", metavar="TEXT"),
    *_TRIAL,
)  # fmt: skip


class Command(VerbCommand):
    help = gettext_noop(
        "Show dead letters and their failures; let workers redrive or drop them, at a chosen rate."
    )
    verbs = {
        "groups": Verb(
            _("failures by cause, the most recent first"),
            _groups, (OF_QUEUE, _LIMIT, FORMAT),
        ),
        "list": Verb(
            _("dead letters, the newest first"), _letters,
            (OF_QUEUE, _LIMIT, FORMAT,
             text("--group", "ID", _('of one failure: its id from "groups"'))),
        ),
        "show": Verb(_("one dead letter with its errors"), _show, (_ID, FORMAT)),
        "redrive": Verb(
            _("redrive all dead letters of a failure or a queue"), _begin, _RUN
        ),
        "drop": Verb(_("drop all dead letters of a failure or a queue"), _begin, _RUN),
        "export": Verb(
            _("export dead letters as lines of JSON"), _export,
            (*_FILTER, text("--output", "FILE",
                            _("a new file (default: standard output)"))),
        ),
        "prune": Verb(
            _("delete old dead letters now"), _prune,
            (OF_QUEUE, text("--older-than", "DURATION", _(
                "age, for example 30d (default: DEAD_LETTER_RETENTION)")), *_TRIAL),
        ),
        "runs": Verb(
            _("bulk runs and their progress, the newest first"),
            _runs, (FORMAT,),
        ),
        "pause": Verb(_("pause a bulk run"), _switch, (_ID, FORMAT)),
        "resume": Verb(_("resume a bulk run"), _switch, (_ID, FORMAT)),
        "cancel": Verb(_("cancel a bulk run"), _switch, (_ID, FORMAT)),
    }  # fmt: skip
