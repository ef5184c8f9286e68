"""``manage.py queueworkers``: list the workers; drain, resume or restart them."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from delayed_queue.exceptions import did_you_mean
from delayed_queue.management.arguments import DRY_RUN, FORMAT, arg
from delayed_queue.management.base import Outcome, Row, Verb, VerbCommand, wrong_usage
from delayed_queue.models import Worker
from delayed_queue.observe.workers import ALIVE, DRAIN, MAX_SUMMED, RESTART

_MIB: Final = 1024 * 1024
_COMMANDS: Final = {"drain": DRAIN, "resume": "", "restart": RESTART}
_STATES: Final = {"": "alive", DRAIN: "drained", RESTART: "restarts"}


def _list(options: dict[str, Any]) -> list[Row]:
    using = options["database"]
    now = Worker.objects.live(using=using).now
    rows = Worker.objects.using(using).order_by("host", "name", "process", "id")
    return [
        {
            "id": row.id, "worker": row.name, "host": row.host, "pid": row.pid,
            "process": row.process, "version": row.version,
            "state": _STATES[row.command] if now - row.heartbeat_at < ALIVE else "silent",
            "threads": f"{row.busy_threads}/{row.threads}", "memory_mb": row.memory // _MIB,
            "running": _running(row, now), "queues": row.queues, "in_flight": row.in_flight,
            "heartbeat": row.heartbeat_at, "started": row.started_at,
        }
        for row in rows[:MAX_SUMMED]
    ]  # fmt: skip


def _running(row: Worker, now: Any) -> str | None:
    found = row.running_at(now)
    return None if found is None else f"{found.queue}/{found.key} {found.seconds}"


def _command(options: dict[str, Any]) -> Outcome:
    using, verb = options["database"], options["command"]
    rows = _named(options["worker"], using).exclude(command=_COMMANDS[verb])
    names = sorted({f"{row.name}, process {row.process}" for row in rows})
    if not options["dry_run"]:
        rows.update(command=_COMMANDS[verb])
        Worker.objects.announce_commands(using=using)
    done = f"would {verb}" if options["dry_run"] else f"will {verb}"
    text = f"{len(names)} {done}: {'; '.join(names)}." if names else "Nothing changes."
    return Outcome(text, {"workers": names, "was_changed": bool(names) and not options["dry_run"]})


def _named(name: str, using: str) -> QuerySet[Worker]:
    """Return the processes with this id, of this worker, or on this host; ``all`` is all."""
    rows = Worker.objects.using(using)
    if name == "all":
        return rows
    is_named = Q(name=name) | Q(host=name)
    if name.isdecimal() and len(name) < 19:
        is_named |= Q(pk=int(name))
    found = rows.filter(is_named)
    if not found.exists():
        known = {each for row in rows.all()[:MAX_SUMMED] for each in (row.name, row.host)}
        raise wrong_usage(f"There is no worker {name!r}.{did_you_mean(name, known)}")
    return found


_WORKER: Final = arg("worker", _("a worker, a host, the id of a process, or all"))


class Command(VerbCommand):
    help = gettext_noop("List the workers; drain, resume or restart them.")
    verbs = {
        "list": Verb(
            _("the processes of workers"), _list, (FORMAT,), "No worker has started.",
            "id worker host process version state threads memory_mb running",
        ),
        "drain": Verb(
            _("claim nothing until resumed; finish what is in progress"), _command,
            (_WORKER, DRY_RUN, FORMAT),
        ),
        "resume": Verb(_("claim again"), _command, (_WORKER, DRY_RUN, FORMAT)),
        "restart": Verb(
            _("finish what is in progress and exit; the supervisor starts another process"),
            _command, (_WORKER, DRY_RUN, FORMAT),
        ),
    }  # fmt: skip
