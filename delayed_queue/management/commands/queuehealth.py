"""``manage.py queuehealth``: report what is wrong with the queues or with a worker."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db import Error, connections
from django.db.migrations.executor import MigrationExecutor
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop, override

from delayed_queue.management.arguments import arg, duration, number, one_of, text
from delayed_queue.management.base import QueueCommand, similar_queue, wrong_usage
from delayed_queue.models import Worker
from delayed_queue.observe.lateness import reasons_of
from delayed_queue.observe.overview import QueueDepth, is_known, measure
from delayed_queue.observe.snapshots import oldest_snapshot
from delayed_queue.worker.deadlines import in_daemon
from delayed_queue.worker.engine.database import (
    is_needed,
    missing_rights,
    name_of_migration,
    our_labels,
)
from delayed_queue.worker.process.health import problems_of_file

MAX_COUNT: Final = 999_999
_APP: Final = "delayed_queue"
_NO_RIGHTS: Final = "delayed_queue.W014"
_CONNECT_SECONDS: Final = 5
# A probe has ten seconds to answer, of which Django's start takes some.
_ANSWER_SECONDS: Final = 7
_OF_DATABASE: Final = ("queue", "max_age", "max_due", "max_dead", "max_running", "max_snapshot_age")


class Command(QueueCommand):
    help = gettext_noop(
        "Check the queues: exit with 0 if all is well, otherwise print the reasons and exit with 1."
    )
    # A probe leaves the system checks to other commands.
    requires_system_checks: list[str] = []
    arguments = (
        arg("--queue", _("a queue to check; repeat for several (default: all)"),
            action="append", default=[], metavar="NAME"),
        duration("--max-age", _("maximum lateness of the earliest due message of a queue")),
        number("--max-due", _("maximum number of due messages of a queue"), 0, MAX_COUNT),
        number("--max-dead", _("maximum number of dead letters of a queue"), 0, MAX_COUNT),
        duration("--max-running", _("maximum run time of a handler")),
        duration("--max-snapshot-age", _(
            "maximum age of a snapshot that keeps PostgreSQL from vacuuming deleted messages")),
        text("--file", "PATH", _("check a worker's health file instead of the database")),
        duration("--max-file-age", _("maximum age of the health file (default: 60)"),
             default=timedelta(minutes=1)),
        one_of("text", "json"),
    )  # fmt: skip

    def handle(self, **options: Any) -> None:
        reasons = _reasons(options)
        if options["format"] == "json":
            self.stdout.write(json.dumps({"healthy": not reasons, "reasons": reasons}))
        else:
            self.stdout.write("\n".join(["unhealthy", *reasons] if reasons else ["healthy"]))
        self.stdout.flush()
        if reasons:
            sys.exit(1)


def _reasons(options: dict[str, Any]) -> list[str]:
    if options["file"] is not None:
        if any(options[name] not in (None, []) for name in _OF_DATABASE):
            text = "--file checks one worker only; check the database in a separate call."
            raise wrong_usage(text)
        return problems_of_file(options["file"], options["max_file_age"])
    using = options["database"]
    try:
        found = in_daemon(lambda: list(_reasons_of_database(options, using)))
        return found.result(_ANSWER_SECONDS)
    except TimeoutError:
        return [f"the database {using!r} has not answered within {_ANSWER_SECONDS} seconds"]


def _reasons_of_database(options: dict[str, Any], using: str) -> Iterator[str]:
    try:
        _limit_waits(using)
        if missing := _missing_migrations(using):
            yield f"migrations of {_APP} are missing: {', '.join(missing)}"
            return
        yield from _of_rights(using)
        yield from _of_names(options["queue"], using)
        for each in _depths(options):
            yield from _of_depth(each, options)
        yield from _of_snapshots(options["max_snapshot_age"], using)
        yield from _of_workers(options["max_running"], options["queue"], using)
    except Error as error:
        yield f"the database {using!r} cannot be queried: {' '.join(str(error).split())}"


def _limit_waits(using: str) -> None:
    """Limit the waits of this thread's connection, unless the settings do."""
    connection = connections[using]
    waits = {"connect_timeout": _CONNECT_SECONDS, "tcp_user_timeout": _CONNECT_SECONDS * 1000}
    options = waits | connection.settings_dict["OPTIONS"]
    connection.settings_dict = {**connection.settings_dict, "OPTIONS": options}


def _missing_migrations(using: str) -> list[str]:
    executor = MigrationExecutor(connections[using])
    leaves = [leaf for app in our_labels() for leaf in executor.loader.graph.leaf_nodes(app)]
    plan = executor.migration_plan(leaves)
    needed = [each for each, _ in plan if is_needed(each)]
    return [name_of_migration(each.app_label, each.name) for each in needed]


def _of_rights(using: str) -> Iterator[str]:
    """Report missing rights of a worker, unless that check is silenced."""
    missing = [] if _NO_RIGHTS in settings.SILENCED_SYSTEM_CHECKS else missing_rights(using)
    if missing:
        rights = ", ".join(map(str, missing))
        yield f"the role {missing[0].role!r} lacks rights of a worker: {rights}"


def _of_names(names: list[str], using: str) -> Iterator[str]:
    """Report unknown names: a misspelt one would always be healthy."""
    for name in dict.fromkeys(names):
        if not is_known(name, using):
            yield (
                f"{name}: there is no such queue: no handler, message, dead letter or "
                f"schedule has it.{similar_queue(name, using)}"
            )


def _of_snapshots(limit: timedelta | None, using: str) -> Iterator[str]:
    found = None if limit is None else oldest_snapshot(using)
    if limit is not None and found is not None and found.is_older_than(limit):
        cost = f", a claim from the start of {found.scanned} takes {found.claim_ms:,} ms"
        cost = cost if found.claim_ms else ""
        yield f"PostgreSQL cannot vacuum deleted messages ({found.rows} rows{cost}): {found}"
        with override(None):
            place = f" {found.place}" if found.place else ""
        yield f"  to end it{place}: {found.remedy}"


def _of_workers(limit: timedelta | None, queues: list[str], using: str) -> Iterator[str]:
    """Report long-running handlers, and recently refused writes, of live workers."""
    live = Worker.objects.live(using=using)
    for each in live.running:
        is_meant = not queues or each.queue in queues
        if is_meant and limit is not None and each.age > limit:
            where = f"in {each.thread} of {each.worker}"
            yield (
                f"{each.queue}: the handler of {each.key!r} has run for {each.seconds} {where}; "
                f"at most {limit} is allowed"
            )
    for (queue, sqlstate), refused in live.refused.items():
        if not queues or queue in queues:
            yield f"{queue}: the database refused {refused:,} writes lately (SQLSTATE {sqlstate})"


def _depths(options: dict[str, Any]) -> list[QueueDepth]:
    """Count up to the limits only; nothing without limits."""
    limits = [options["max_due"], options["max_dead"]]
    if limits == [None, None] and options["max_age"] is None:
        return []
    cap = max(limit or 0 for limit in limits) + 1
    return measure(options["queue"], cap=cap, using=options["database"])[0]


def _of_depth(depth: QueueDepth, options: dict[str, Any]) -> Iterator[str]:
    queue, age = depth.name.queue, depth.oldest_due_age
    max_age, max_due, max_dead = (options[name] for name in ("max_age", "max_due", "max_dead"))
    if max_age is not None and age is not None and age > max_age:
        late = timedelta(seconds=int(age.total_seconds()))
        why = "; ".join(map(str, reasons_of([depth], using=options["database"])[depth.kind]))
        limit = f"at most {max_age} is allowed"
        yield f"{queue}: the earliest due message is {late} late; {limit}: {why}"
    if max_due is not None and depth.due.value > max_due:
        yield f"{queue}: {depth.due} messages are due; at most {max_due:,} are allowed"
    if max_dead is not None and depth.dead.value > max_dead:
        yield f"{queue}: {depth.dead} dead letters; at most {max_dead:,} are allowed"
