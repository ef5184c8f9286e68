"""``manage.py queuedead``: what is dead and why, and redriving, dropping or exporting it."""

from __future__ import annotations

import getpass
import json
import re
from argparse import ArgumentParser
from base64 import b64encode
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from delayed_queue.conf import get_settings
from delayed_queue.db.clock import ago
from delayed_queue.exceptions import NoSuchLetters, RunInProgress
from delayed_queue.management.base import (
    WRONG_USAGE,
    QueueCommand,
    add_database,
    add_format,
    count,
    described,
    printable,
    queue_named,
    show,
    tell,
)
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
_SWITCHES: Final = ("pause", "resume", "cancel")


class Command(QueueCommand):
    help = gettext_noop(
        "Show dead letters and their failures; let workers redrive or drop them, at a chosen rate."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        groups = commands.add_parser("groups", help=_("failures by cause, the most recent first"))
        _add_list(groups)
        letters = commands.add_parser("list", help=_("dead letters, the newest first"))
        _add_list(letters)
        letters.add_argument(
            "--group", metavar="ID", help=_('of one failure: its id from "groups"')
        )
        one = commands.add_parser("show", help=_("one dead letter with its errors"))
        one.add_argument("id", type=count(1, MAX_LETTERS))
        add_format(one)
        _add_run(
            commands.add_parser(
                "redrive", help=_("redrive all dead letters of a failure or a queue")
            )
        )
        _add_run(
            commands.add_parser("drop", help=_("drop all dead letters of a failure or a queue"))
        )
        export = commands.add_parser("export", help=_("export dead letters as lines of JSON"))
        _add_filter(export)
        export.add_argument(
            "--output", metavar="FILE", help=_("a new file (default: standard output)")
        )
        prune = commands.add_parser("prune", help=_("delete old dead letters now"))
        prune.add_argument("--queue", metavar="NAME", help=_("of one queue, or kind as name|codec"))
        prune.add_argument(
            "--older-than",
            metavar="DURATION",
            help=_("age, for example 30d (default: DEAD_LETTER_RETENTION)"),
        )
        _add_trial(prune)
        runs = commands.add_parser("runs", help=_("bulk runs and their progress, the newest first"))
        add_format(runs)
        for name, words in (
            ("pause", _("pause a bulk run")),
            ("resume", _("resume a bulk run")),
            ("cancel", _("cancel a bulk run")),
        ):
            switch = commands.add_parser(name, help=words)
            switch.add_argument("id", type=count(1, MAX_LETTERS))
            add_format(switch)
        add_database(parser, commands)

    def handle(self, **options: Any) -> None:
        command = options["command"]
        if command in _LISTS:
            show(self.stdout, _LISTS[command](options), options["format"])
        elif command in _SWITCHES:
            self._switch(options)
        else:
            acts = {"show": self._show, "export": self._export, "prune": self._prune}
            acts.get(command, self._begin)(options)

    def _show(self, options: dict[str, Any]) -> None:
        letter = DeadLetter.objects.using(options["database"]).filter(pk=options["id"]).first()
        if letter is None:
            raise CommandError(_("There is no dead letter %s.") % options["id"], returncode=1)
        row = _letter(letter)
        if options["format"] == "json":
            errors = {"first_error": letter.first_error, "last_error": letter.last_error}
            show(self.stdout, [{**row, **errors}], "json")
            return
        self.stdout.write(described(row))
        self.stdout.write(f"\n{printable(letter.last_error or _('No error was stored.'))}")

    def _begin(self, options: dict[str, Any]) -> None:
        using, plan, style = options["database"], _plan(options), options["format"]
        found = plan.preview(using)
        more = "+" if found.seen == PREVIEW_CAP else ""
        facts = {"meant": found.meant, "is_capped": bool(more)}
        if options["dry_run"]:
            tell(self.stdout, _meant(found.meant, more), style, run=None, **facts)
            return
        try:
            run_id = plan.start(by=getpass.getuser(), why=options["why"], using=using)
        except RunInProgress as error:
            raise CommandError(str(error), returncode=TRY_LATER) from error
        except NoSuchLetters as error:
            raise CommandError(str(error), returncode=1) from error
        said = ngettext(
            'Run %(run)s has started: %(meant)s dead letter. "queuedead runs" shows its progress.',
            'Run %(run)s has started: %(meant)s dead letters. "queuedead runs" shows its progress.',
            found.meant,
        ) % {"run": run_id, "meant": f"{found.meant:,}{more}"}
        tell(self.stdout, said, style, run=run_id, **facts)

    def _export(self, options: dict[str, Any]) -> None:
        letters = _plan(options).letters(options["database"])
        if options["output"] is None:
            for each in letters:
                self.stdout.write(_exported(each))
            return
        try:
            # Never over a file that is there: it may be the only copy of what was dropped since.
            with Path(options["output"]).open("x", encoding="utf-8") as file:
                written = sum(file.write(f"{_exported(each)}\n") > 0 for each in letters)
        except OSError as error:
            said = _("%(file)s cannot be written: %(error)s.")
            facts = {"file": options["output"], "error": error.strerror}
            raise CommandError(said % facts, returncode=1) from error
        said = ngettext(
            "%(number)s dead letter was written to %(file)s.",
            "%(number)s dead letters were written to %(file)s.",
            written,
        )
        self.stderr.write(said % {"number": f"{written:,}", "file": options["output"]})

    def _prune(self, options: dict[str, Any]) -> None:
        using, age, kind = options["database"], _age(options), _kind(options)
        kinds = DeadLetter.objects.kinds(_MAX_KINDS, using=using) if kind is None else [kind]
        if options["dry_run"]:
            until = ago(age, using)
            plans = [BulkPlan("drop", each, until=until) for each in kinds]
            meant = sum(each.preview(using, cap=MAX_COUNTED).meant for each in plans)
            tell(self.stdout, _meant(meant), options["format"], meant=meant)
            return
        pruned = sum(_pruned(each, age, using) for each in kinds)
        said = ngettext("%s dead letter was deleted.", "%s dead letters were deleted.", pruned)
        tell(self.stdout, said % f"{pruned:,}", options["format"], deleted=pruned)

    def _switch(self, options: dict[str, Any]) -> None:
        run_id, command = options["id"], options["command"]
        if not switch_run(run_id, command, using=options["database"]):
            said = _(
                'There is no run %(run)s that "%(command)s" applies to. "queuedead '
                'runs" lists the runs.'
            )
            raise CommandError(said % {"run": run_id, "command": command}, returncode=1)
        said = _("Run %(run)s: %(command)s done.") % {"run": run_id, "command": command}
        tell(self.stdout, said, options["format"], run=run_id)


def _meant(number: int, more: str = "") -> str:
    said = ngettext(
        "%s dead letter would be taken; nothing was changed.",
        "%s dead letters would be taken; nothing was changed.",
        number,
    )
    return said % f"{number:,}{more}"


def _add_list(parser: ArgumentParser) -> None:
    parser.add_argument("--queue", metavar="NAME", help=_("of one queue, or kind as name|codec"))
    parser.add_argument(
        "--limit", type=count(1, MAX_ROWS), default=25, metavar="N", help=_("rows (default: 25)")
    )
    add_format(parser)


def _add_filter(parser: ArgumentParser) -> None:
    parser.add_argument("queue", help=_("a queue, or a kind as name|codec"))
    parser.add_argument("--group", metavar="ID", help=_('only this failure: its id from "groups"'))
    parser.add_argument(
        "--reason", metavar="TEXT", help=_("only reasons that start with this text")
    )
    parser.add_argument("--key-from", metavar="KEY", help=_("only this key and later ones"))
    parser.add_argument("--key-before", metavar="KEY", help=_("only keys before this one"))
    parser.add_argument(
        "--newer-than",
        metavar="DURATION",
        help=_("only dead letters younger than this, for example 30m or 2d"),
    )
    parser.add_argument(
        "--older-than",
        metavar="DURATION",
        help=_("only dead letters older than this, for example 30m or 2d"),
    )
    parser.add_argument(
        "--limit", type=count(1, MAX_LETTERS), metavar="N", help=_("at most this many")
    )


def _add_trial(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help=_("only show how many would be taken")
    )
    add_format(parser)


def _add_run(parser: ArgumentParser) -> None:
    _add_filter(parser)
    parser.add_argument(
        "--pace",
        type=count(1, MAX_PACE),
        metavar="N",
        help=_("dead letters per second (default: no limit)"),
    )
    parser.add_argument(
        "--over", metavar="DURATION", help=_("spread over this time, for example 2h")
    )
    parser.add_argument(
        "--canary", type=count(1, MAX_CANARY), default=0, metavar="N",
        help=_("redrive this many first; continue only if they do not die of the same failure"),
    )  # fmt: skip
    parser.add_argument(
        "--canary-deaths", type=count(1, MAX_CANARY), default=1, metavar="N",
        help=_("stop the run if this many of the canary die again (default: 1)"),
    )  # fmt: skip
    parser.add_argument("--why", default="", metavar="TEXT", help=_("stored with the run"))
    _add_trial(parser)


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


_LISTS: Final = {"groups": _groups, "list": _letters, "runs": _runs}
