"""``manage.py installcron``: a shell around one CronKeeper."""

from __future__ import annotations

import json
import signal
from argparse import ArgumentParser
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from types import FrameType
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import InterfaceError, OperationalError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.conf import SETTING
from delayed_queue.cron.keeper import CronKeeper, CronThread, Kept
from delayed_queue.db.clock import read_clock
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.management.arguments import add_database, add_format
from delayed_queue.management.base import WRONG_USAGE, QueueCommand
from delayed_queue.management.tables import show
from delayed_queue.messages import from_milliseconds
from delayed_queue.worker.deadlines import LAST_EXIT_SECONDS, last_exit

NEXT_TIMES = 3
_NOTHING: Final = (
    f"There are no schedules: declare one in {SETTING}['CRON'] or with @schedule, or create one in "
    "the admin."
)


class Command(QueueCommand):
    help = gettext_noop("Install the ticks of all schedules and keep them installed until stopped.")

    def add_arguments(self, parser: ArgumentParser) -> None:
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument("--once", action="store_true", help=_("install once and exit"))
        mode.add_argument("--dry-run", action="store_true", help=_("show what --once would do"))
        mode.add_argument(
            "--uninstall", action="store_true",
            help=_("remove the pending ticks; running workers would install them again"),
        )  # fmt: skip
        mode.add_argument("--list", action="store_true", help=_("show the schedules"))
        parser.add_argument(
            "--force", action="store_true",
            help=_(
                "with --once: replace newer configurations too, for example after a "
                "rollback of a deployment"),
        )  # fmt: skip
        add_format(parser)
        add_database(parser)

    def handle(self, **options: Any) -> None:
        if options["force"] and not (options["once"] or options["dry_run"]):
            said = _(
                "--force needs --once: a running installer cannot keep replacing newer "
                "configurations."
            )
            raise CommandError(said, returncode=WRONG_USAGE)
        keeper = CronKeeper(options["database"])
        if options["list"]:
            rows = _listed(keeper, options["database"])
            shown = rows if options["format"] == "json" else list(map(_short, rows))
            show(self.stdout, shown, options["format"], none=_NOTHING)
        elif options["uninstall"]:
            self._report(keeper.uninstall(), options["format"])
        elif options["once"] or options["dry_run"]:
            kept = keeper.check(force=options["force"], is_dry=options["dry_run"])
            self._report(kept, options["format"])
        else:
            _keep(keeper, options["database"])

    def _report(self, kept: list[Kept], style: str) -> None:
        self._say([_outcome(each) for each in kept], style)
        if any(each.error for each in kept):
            raise CommandError(_("Some schedules could not be installed."))

    def _say(self, rows: list[dict[str, Any]], style: str) -> None:
        if style == "json":
            self.stdout.write(json.dumps(rows, indent=2))
        else:
            self.stdout.write("\n".join(map(_line, rows)) or _NOTHING)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """Return what fits a table."""
    rule = " ".join(filter(None, (row["expression"], row["timezone"])))
    state = "paused" if row["is_paused"] else "on"
    return {
        "schedule": row["schedule"], "type": row["type"], "rule": rule, "state": state,
        "next": datetime.fromisoformat(row["next"][0]),
    }  # fmt: skip


def _line(row: dict[str, Any]) -> str:
    """Return ``name: what`` and then ``name=value`` for all that says something."""
    rest = {**row, **(row.get("report") or {})}
    head = f"{rest.pop('schedule')}: {rest.pop('outcome', None) or rest.pop('type')}"
    rest.pop("report", None)
    shown = (f"{name}={_shown(value)}" for name, value in rest.items() if value)
    return " ".join([head, *shown])


def _shown(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def _outcome(kept: Kept) -> dict[str, Any]:
    report = None if kept.report is None else asdict(kept.report)
    return {
        "schedule": kept.name,
        "outcome": _summary(kept),
        "config_hash": kept.config_hash,
        "report": report,
    }


def _summary(kept: Kept) -> str:
    if kept.error:
        return f"failed: {kept.error}"
    if kept.uninstalled is not None:
        return f"uninstalled {kept.uninstalled}"
    if kept.report is None:
        return "nothing to do"
    if kept.report.superseded_by:
        return f"gives way to {kept.report.superseded_by}"
    return "paused" if kept.report.is_paused else "installed"


def _listed(keeper: CronKeeper, using: str) -> list[dict[str, Any]]:
    now = read_clock(using)
    rows = []
    for entry, installer, row in keeper.listed():
        times = installer.schedule.next_times(now)[:NEXT_TIMES]
        rows.append(
            {
                "schedule": str(installer),
                "type": entry.definition.type,
                "expression": entry.definition.expression,
                "timezone": getattr(installer.schedule, "timezone", None),
                "declared_in": entry.declared_in or "admin",
                "is_paused": row is not None and not row.is_enabled,
                "config_hash": installer.config_hash,
                "active_hash": row.config_hash if row else "",
                "last_tick": _instant(row.last_tick if row else None),
                "installed_at": _instant(row.installed_at if row else None),
                "next": [at.isoformat() for at in times],
            }
        )
    return rows


def _instant(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else from_milliseconds(milliseconds).isoformat()


def _keep(keeper: CronKeeper, using: str) -> None:
    """Keep the schedules until SIGTERM or SIGINT, which it leaves a few seconds for the rest."""
    thread = CronThread(keeper, using)
    with last_exit(LAST_EXIT_SECONDS) as arm:

        def stop(number: int, frame: FrameType | None) -> None:
            arm()
            thread.stop()

        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, stop)
        # An outage is waited for; missing tables are an error.
        with suppress(InterfaceError, OperationalError, ResourceUnavailable):
            list(keeper.listed())
        thread.run()
