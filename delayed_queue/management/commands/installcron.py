"""``manage.py installcron``: install the ticks of schedules."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import InterfaceError, OperationalError
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from delayed_queue.conf import SETTING
from delayed_queue.cron.keeper import CronKeeper, CronThread, Kept
from delayed_queue.db.clock import read_clock
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.management.arguments import FORMAT, flag
from delayed_queue.management.base import QueueCommand, Row, optional_time, wrong_usage
from delayed_queue.models import ScheduleRun
from delayed_queue.worker.deadlines import LAST_EXIT_SECONDS, last_exit, stop_on_signals

_NOTHING: Final = (
    f"There are no schedules: declare one in {SETTING}['CRON'] or with @schedule, or create one in "
    "the admin."
)
_LISTED: Final = "schedule type expression timezone paused last outcome next"
_NO_RUN: Final[Row] = dict.fromkeys(("last", "started", "finished", "outcome"))
_COUNTS: Final = "created updated kept skipped removed"


class Command(QueueCommand):
    help = gettext_noop("Install the ticks of all schedules and keep them installed until stopped.")
    arguments = (
        (
            flag("--once", _("install once and exit")),
            flag("--dry-run", _("show what --once would do")),
            flag("--uninstall", _(
                "remove the pending ticks; running workers would install them again")),
            flag("--list", _("show the schedules")),
        ),
        flag("--force", _(
            "with --once: replace newer configurations too, for example after a "
            "rollback of a deployment")),
        FORMAT,
    )  # fmt: skip

    def handle(self, **options: Any) -> None:
        is_once, style = options["once"] or options["dry_run"], options["format"]
        if options["force"] and not is_once:
            raise wrong_usage(
                "--force needs --once: a running installer cannot keep replacing newer "
                "configurations."
            )
        keeper = CronKeeper(options["database"])
        if options["list"]:
            listed = _listed(keeper, options["database"])
            self.write(listed, style, none=_NOTHING, columns=_LISTED)
        elif options["uninstall"]:
            self._report(keeper.uninstall(), style)
        elif is_once:
            self._report(keeper.check(force=options["force"], is_dry=options["dry_run"]), style)
        else:
            _keep(keeper, options["database"])

    def _report(self, kept: list[Kept], style: str) -> None:
        columns = f"schedule outcome {_COUNTS}"
        self.write(list(map(_row, kept)), style, none=_NOTHING, columns=columns)
        if failed := [f"{each.name}: {each.error}" for each in kept if each.error]:
            raise CommandError(f"Some schedules could not be installed. {'; '.join(failed)}")


def _row(kept: Kept) -> Row:
    counts = {name: getattr(kept.report, name, None) for name in _COUNTS.split()}
    facts = {"schedule": kept.name, "outcome": _summary(kept), "config_hash": kept.config_hash}
    return facts | counts


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


def _last_runs(using: str) -> dict[tuple[str, str], Row]:
    """Return the last run of each schedule, by kind and prefix."""
    runs = ScheduleRun.objects.using(using).select_related("schedule")
    latest = runs.order_by("schedule_id", "-planned_at", "-id").distinct("schedule_id")
    return {
        (each.schedule.kind, each.schedule.key_prefix): {
            "last": each.planned_at, "started": each.started_at, "finished": each.finished_at,
            "outcome": each.outcome,
        }
        for each in latest
    }  # fmt: skip


def _listed(keeper: CronKeeper, using: str) -> list[Row]:
    now, last = read_clock(using), _last_runs(using)
    return [
        {
            "schedule": str(installer),
            "type": entry.definition.type,
            "expression": entry.definition.expression,
            "timezone": getattr(installer.schedule, "timezone", None),
            "declared_in": entry.declared_in or "admin",
            "paused": row is not None and not row.is_enabled,
            "config_hash": installer.config_hash,
            "active_hash": row.config_hash if row else "",
            "last_tick": row and optional_time(row.last_tick),
            "installed_at": row and optional_time(row.installed_at),
            **last.get((row.kind, row.key_prefix) if row else ("", ""), _NO_RUN),
            "next": installer.schedule.next_times(now)[0],
        }
        for entry, installer, row in keeper.listed()
    ]


def _keep(keeper: CronKeeper, using: str) -> None:
    """Keep the schedules until SIGTERM or SIGINT; then stop within a few seconds."""
    thread = CronThread(keeper, using)
    with last_exit(LAST_EXIT_SECONDS) as arm:
        stop_on_signals(arm, thread.stop, again=None)
        # The thread waits for an outage to end; missing tables are an error.
        with suppress(InterfaceError, OperationalError, ResourceUnavailable):
            list(keeper.listed())
        thread.run()
