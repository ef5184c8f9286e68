"""``manage.py queuedead``: what is dead and why, and redriving or dropping all of it."""

from __future__ import annotations

import getpass
from argparse import ArgumentParser
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS

from delayed_queue.exceptions import NoSuchLetters, RunInProgress
from delayed_queue.management.base import WRONG_USAGE, QueueCommand, count, queue_named
from delayed_queue.management.tables import add_json, show
from delayed_queue.messages import from_milliseconds, to_milliseconds
from delayed_queue.models import BulkRun, DeadLetter
from delayed_queue.queue.bulk import (
    MAX_CANARY,
    MAX_LETTERS,
    MAX_PACE,
    PREVIEW_CAP,
    BulkPlan,
    switch_run,
)
from delayed_queue.queue.fingerprints import describe
from delayed_queue.retries import parse_duration

MAX_ROWS: Final = 5_000
# As sysexits has it: try again later.
TRY_LATER: Final = 75
_RUNS: Final = ("redrive", "drop")
_SWITCHES: Final = ("pause", "resume", "cancel")


class Command(QueueCommand):
    help = "Show what is dead and why; have the workers redrive or drop it, at a pace."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="database alias")
        commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        groups = commands.add_parser("groups", help="failures by cause, those seen last first")
        _add_list(groups)
        letters = commands.add_parser("list", help="dead letters, the newest first")
        _add_list(letters)
        letters.add_argument("--group", metavar="ID", help="of one failure, as groups names it")
        one = commands.add_parser("show", help="one dead letter with its errors")
        one.add_argument("id", type=count(1, MAX_LETTERS))
        add_json(one)
        for name in _RUNS:
            _add_run(commands.add_parser(name, help=f"{name} all of a failure, or of a queue"))
        runs = commands.add_parser("runs", help="bulk runs and how far they are, the newest first")
        add_json(runs)
        for name in _SWITCHES:
            switch = commands.add_parser(name, help=f"{name} a bulk run")
            switch.add_argument("id", type=count(1, MAX_LETTERS))

    def handle(self, **options: Any) -> None:
        command = options["command"]
        if command in _RUNS:
            self._begin(options)
        elif command in _SWITCHES:
            self._switch(options)
        elif command == "show":
            self._show(options)
        else:
            rows = {"groups": _groups, "list": _letters, "runs": _runs}[command](options)
            show(self.stdout, rows, as_json=options["json"])

    def _show(self, options: dict[str, Any]) -> None:
        letter = DeadLetter.objects.using(options["database"]).filter(pk=options["id"]).first()
        if letter is None:
            raise CommandError(f"There is no dead letter {options['id']}.", returncode=1)
        row = _letter(letter)
        if options["json"]:
            errors = {"first_error": letter.first_error, "last_error": letter.last_error}
            show(self.stdout, [{**row, **errors}], as_json=True)
            return
        self.stdout.write("\n".join(f"{name:8} {value}" for name, value in row.items()))
        self.stdout.write(f"\n{letter.last_error or 'No error was kept.'}")

    def _begin(self, options: dict[str, Any]) -> None:
        using, plan = options["database"], _plan(options)
        found = plan.preview(using)
        more = "+" if found.seen == PREVIEW_CAP else ""
        if options["dry_run"]:
            self.stdout.write(f"{found.meant:,}{more} dead letters are meant; nothing was changed.")
            return
        try:
            run_id = plan.start(by=getpass.getuser(), why=options["why"], using=using)
        except RunInProgress as error:
            raise CommandError(str(error), returncode=TRY_LATER) from error
        except NoSuchLetters as error:
            raise CommandError(str(error), returncode=1) from error
        self.stdout.write(
            f"Run {run_id} has begun: {found.meant:,}{more} dead letters. "
            "See queuedead runs for how far it is."
        )

    def _switch(self, options: dict[str, Any]) -> None:
        run_id, command = options["id"], options["command"]
        if not switch_run(run_id, command, using=options["database"]):
            raise CommandError(f"There is no run {run_id} to {command}.", returncode=1)
        self.stdout.write(f"Run {run_id}: {command} done.")


def _add_list(parser: ArgumentParser) -> None:
    parser.add_argument("--queue", metavar="NAME", help="of one queue, or kind as name|codec")
    parser.add_argument(
        "--limit", type=count(1, MAX_ROWS), default=25, metavar="N", help="rows (default: 25)"
    )
    add_json(parser)


def _add_run(parser: ArgumentParser) -> None:
    parser.add_argument("queue", help="a queue, or a kind as name|codec")
    parser.add_argument("--group", metavar="ID", help="one failure only, as groups names it")
    parser.add_argument("--reason", metavar="TEXT", help="only reasons that begin so")
    parser.add_argument(
        "--older-than", metavar="DURATION", help="only what died longer ago, as 30m or 2d"
    )
    parser.add_argument(
        "--pace", type=count(1, MAX_PACE), metavar="N", help="letters a second (default: all)"
    )
    parser.add_argument("--limit", type=count(1, MAX_LETTERS), metavar="N", help="at most so many")
    parser.add_argument(
        "--canary", type=count(1, MAX_CANARY), default=0, metavar="N",
        help="redrive so many first, the rest only when none of them died again",
    )  # fmt: skip
    parser.add_argument("--why", default="", metavar="TEXT", help="kept with the run")
    parser.add_argument("--dry-run", action="store_true", help="only say how many are meant")


def _plan(options: dict[str, Any]) -> BulkPlan:
    until, older = None, options["older_than"]
    if older is not None:
        span: timedelta = parse_duration(older)
        until = to_milliseconds(datetime.now(UTC) - span)
    return BulkPlan(
        options["command"],
        queue_named(options["queue"], options["database"]).kind,
        options["group"],
        options["reason"],
        until,
        options["pace"],
        options["limit"],
        options["canary"],
    )


def _kind(options: dict[str, Any]) -> str | None:
    name = options["queue"]
    return None if name is None else queue_named(name, options["database"]).kind


def _groups(options: dict[str, Any]) -> list[dict[str, Any]]:
    rows = DeadLetter.objects.groups(
        _kind(options), shown=options["limit"], using=options["database"]
    )
    return [
        {
            "group": row.fingerprint, "queue": row.kind, "dead": row.letters,
            "last": from_milliseconds(row.last_at), "failure": describe(row.reason, row.error),
            **({"first": from_milliseconds(row.first_at), "newest_id": row.newest}
               if options["json"] else {}),
        }
        for row in rows
    ]  # fmt: skip


def _letters(options: dict[str, Any]) -> list[dict[str, Any]]:
    kind, group = _kind(options), options["group"]
    rows = DeadLetter.objects.using(options["database"]).defer("payload", "headers")
    if group is not None and kind is None:
        raise CommandError("A failure is one of a queue: add --queue.", returncode=WRONG_USAGE)
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
                "why": row.why} if options["json"] else {}),
        }
        for row in rows
    ]  # fmt: skip
