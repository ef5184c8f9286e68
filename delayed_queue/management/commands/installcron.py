"""``manage.py installcron``: install the ticks of schedules."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from types import FrameType
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import InterfaceError, OperationalError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop

from delayed_queue.conf import SETTING
from delayed_queue.cron.keeper import CronKeeper, CronThread, Kept
from delayed_queue.db.clock import read_clock
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.management.arguments import FORMAT, flag
from delayed_queue.management.base import QueueCommand, Row, wrong_usage
from delayed_queue.messages import from_milliseconds
from delayed_queue.worker.deadlines import LAST_EXIT_SECONDS, last_exit

NEXT_TIMES: Final = 3
_NOTHING: Final = (
    f"There are no schedules: declare one in {SETTING}['CRON'] or with @schedule, or create one in "
    "the admin."
)
_COUNTS: Final = ("created", "updated", "kept", "skipped", "removed")


class Command(QueueCommand):
    help = gettext_noop("Install the ticks of all schedules and keep them installed until stopped.")
    arguments = (
        (
            flag("--once", gettext_lazy("install once and exit")),
            flag("--dry-run", gettext_lazy("show what --once would do")),
            flag("--uninstall", gettext_lazy(
                "remove the pending ticks; running workers would install them again")),
            flag("--list", gettext_lazy("show the schedules")),
        ),
        flag("--force", gettext_lazy(
            "with --once: replace newer configurations too, for example after a "
            "rollback of a deployment")),
        FORMAT,
    )  # fmt: skip

    def handle(self, **options: Any) -> None:
        is_once = options["once"] or options["dry_run"]
        if options["force"] and not is_once:
            text = _(
                "--force needs --once: a running installer cannot keep replacing newer "
                "configurations."
            )
            raise wrong_usage(text)
        keeper = CronKeeper(options["database"])
        if options["list"]:
            rows = _listed(keeper, options["database"])
            shown = rows if options["format"] == "json" else list(map(_short, rows))
            self.write(shown, options["format"], none=_NOTHING)
        elif options["uninstall"]:
            self._report(keeper.uninstall(), options["format"])
        elif is_once:
            kept = keeper.check(force=options["force"], is_dry=options["dry_run"])
            self._report(kept, options["format"])
        else:
            _keep(keeper, options["database"])

    def _report(self, kept: list[Kept], style: str) -> None:
        rows = [_table_row(each) if style == "table" else _row(each) for each in kept]
        self.write(rows, style, none=_NOTHING)
        if failed := [f"{each.name}: {each.error}" for each in kept if each.error]:
            text = _("Some schedules could not be installed. %s")
            raise CommandError(text % "; ".join(failed))


def _row(kept: Kept) -> Row:
    return {
        "schedule": kept.name,
        "outcome": _summary(kept),
        "config_hash": kept.config_hash,
        "report": None if kept.report is None else asdict(kept.report),
    }


def _table_row(kept: Kept) -> Row:
    counts = {name: getattr(kept.report, name, None) for name in _COUNTS}
    return {"schedule": kept.name, "outcome": _summary(kept), **counts}


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


def _listed(keeper: CronKeeper, using: str) -> list[Row]:
    now = read_clock(using)
    return [
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
            "next": [each.isoformat() for each in installer.schedule.next_times(now)[:NEXT_TIMES]],
        }
        for entry, installer, row in keeper.listed()
    ]


def _short(row: Row) -> Row:
    """Return the columns of the table."""
    rule = " ".join(filter(None, (row["expression"], row["timezone"])))
    state = "paused" if row["is_paused"] else "on"
    return {
        "schedule": row["schedule"], "type": row["type"], "rule": rule, "state": state,
        "next": datetime.fromisoformat(row["next"][0]),
    }  # fmt: skip


def _instant(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else from_milliseconds(milliseconds).isoformat()


def _keep(keeper: CronKeeper, using: str) -> None:
    """Keep the schedules until SIGTERM or SIGINT; then stop within a few seconds."""
    thread = CronThread(keeper, using)
    with last_exit(LAST_EXIT_SECONDS) as arm:

        def stop(number: int, frame: FrameType | None) -> None:
            arm()
            thread.stop()

        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, stop)
        # The thread waits for an outage to end; missing tables are an error.
        with suppress(InterfaceError, OperationalError, ResourceUnavailable):
            list(keeper.listed())
        thread.run()
